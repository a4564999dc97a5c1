//! Media -> a hash of its content.
//!
//! Equal hashes must mean equal content to the engine, so everything that identifies an item goes
//! in: what kind it is, and its identifier, address or data. The data is hashed where it lies in
//! the body.

use xxhash_rust::xxh3::Xxh3;

use super::json::{Node, Text};
use super::{Modality, RequestError};

/// Hashes a part's content piece by piece; two items of equal pieces joined are equal.
pub(super) struct ContentHasher(Xxh3);

impl ContentHasher {
    pub(super) fn new(modality: Modality) -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.0.update(match modality {
            Modality::Image => b"image:",
            Modality::Audio => b"audio:",
            Modality::Video => b"video:",
        });
        hasher
    }

    pub(super) fn text(&mut self, text: Text<'_>) -> Result<&mut Self, RequestError> {
        text.decode_to(|run| self.0.update(run.as_bytes()))?;
        Ok(self)
    }

    pub(super) fn str(&mut self, text: &str) -> &mut Self {
        self.0.update(text.as_bytes());
        self
    }

    /// Any JSON value, its structure told apart by marks.
    pub(super) fn node(&mut self, node: &Node<'_>) -> Result<&mut Self, RequestError> {
        match node {
            Node::Null => self.0.update(b"\0n"),
            Node::Bool(value) => self.0.update(if *value { b"\0t" } else { b"\0f" }),
            Node::Number(text) => self.0.update(text.as_bytes()),
            Node::String(text) => {
                self.text(*text)?;
            }
            Node::Ids(ids) => ids.iter().for_each(|id| self.0.update(&id.to_le_bytes())),
            Node::Array(items) => {
                for item in items {
                    self.0.update(b"\0,");
                    self.node(item)?;
                }
            }
            Node::Object(object) => {
                for (key, value) in object.members() {
                    self.0.update(b"\0k");
                    self.text(key)?;
                    self.0.update(b"\0:");
                    self.node(value)?;
                }
            }
        }
        Ok(self)
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.digest()
    }
}
