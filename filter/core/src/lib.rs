//! Warmpath's routing core: from request bytes to the picked backend.
