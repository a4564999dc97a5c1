//! Python's and Jinja2's built-in behaviour, on minijinja values.
//!
//! One file a family: `repr` (str, repr and float printing), `format`
//! (str.format and %), `json` (tojson),
//! `text` (str), `methods` (method dispatch), `ops` (operators on values),
//! `filters`, `tests`, `globals`, and `helpers` (what the transpiler calls).

pub(crate) mod args;
pub(crate) mod filters;
pub(crate) mod format;
pub(crate) mod globals;
pub(crate) mod helpers;
pub(crate) mod json;
pub(crate) mod methods;
pub(crate) mod ops;
pub(crate) mod repr;
pub(crate) mod tests;
pub(crate) mod text;
