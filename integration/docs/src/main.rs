//! `warmpath-docs`: writes the documents that are made from the code.

fn main() -> anyhow::Result<()> {
    for document in warmpath_docs::documents()? {
        std::fs::write(warmpath_docs::repository().join(document.path), document.text)?;
        println!("wrote {}", document.path);
    }
    Ok(())
}
