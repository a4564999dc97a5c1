//! Model bundles: one compact file that carries a model's tokenizer and chat template.
