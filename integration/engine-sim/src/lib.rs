//! An OpenAI-compatible LLM engine without a GPU.
