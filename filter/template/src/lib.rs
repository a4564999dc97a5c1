//! Chat templates, rendered as Hugging Face transformers renders them.
