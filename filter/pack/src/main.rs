//! `warmpath-pack`: packs a model directory into a bundle for the filter.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use warmpath_pack::{Encoding, ModelFiles, PackError, Packed, pack};

/// Packs a model's tokenizer and chat templates into one file for Warmpath's filter.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The model's directory, as published: tokenizer.json, tokenizer_config.json, templates.
    #[arg(long, value_name = "DIR")]
    model_dir: PathBuf,
    /// Use this tokenizer.json.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Use this tokenizer_config.json.
    #[arg(long, value_name = "FILE")]
    tokenizer_config: Option<PathBuf>,
    /// Use this chat template, and no other.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Write chats as vLLM does with this --tokenizer-mode; by itself that of the model's architecture.
    #[arg(long, conflicts_with = "chat_template", value_parser = PossibleValuesParser::new(Encoding::names()))]
    encoding: Option<String>,
    /// The model's name, for reports.
    #[arg(long)]
    name: String,
    /// Where to write the bundle.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(packed) => {
            report(&options, &packed);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("warmpath-pack: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(options: &Options) -> Result<Packed, PackError> {
    let mut files = ModelFiles::find(
        &options.model_dir,
        options.tokenizer.as_deref(),
        options.tokenizer_config.as_deref(),
        options.chat_template.as_deref(),
    )?;
    files.encoding = options.encoding.as_deref().and_then(Encoding::named).or(files.encoding);
    let packed = pack(&options.name, &files)?;
    std::fs::write(&options.output, &packed.bytes)
        .map_err(|source| PackError::Io { path: options.output.clone(), source })?;
    Ok(packed)
}

fn report(options: &Options, packed: &Packed) {
    let meta = &packed.meta;
    let templates: Vec<String> = packed
        .templates
        .iter()
        .map(|(name, source)| format!("{name} ({} bytes)", source.len()))
        .collect();
    let shown = |token: &Option<String>| token.clone().unwrap_or_else(|| "none".into());
    println!("name         {}", meta.name);
    println!(
        "tokenizer    {}, {} ids, {} added tokens",
        meta.model_kind, meta.vocab_size, meta.added_tokens
    );
    println!(
        "special      BOS {}, EOS {}",
        shown(&packed.special.bos_token),
        shown(&packed.special.eos_token)
    );
    let listed = match &meta.mistral {
        Some(format) => format!("none; Mistral's format, version {:?}", format.version),
        None if templates.is_empty() => "none".into(),
        None => templates.join(", "),
    };
    println!("templates    {listed}");
    println!("bundle       {}, {} bytes", options.output.display(), packed.bytes.len());
    let compiled = if templates.is_empty() { "" } else { "; templates compile" };
    println!(
        "checked      read back; the source's ids on {} texts{compiled}",
        packed.texts_checked
    );
    for note in &packed.notes {
        println!("note         {note}");
    }
}
