//! What the built filter asks of its host.
//!
//! In: the bytes of the Wasm module. A host refuses a module that imports a function which it does not
//! have, and a crate that draws in clocks, threads or files shows up here as such an import before an
//! Envoy refuses to start.

use std::collections::BTreeSet;

use wasmparser::{Operator, Parser, Payload};

use crate::Finding;

/// The parts of WASI that proxy-wasm hosts have had from their beginning: standard output, clock, random
/// numbers, environment. Newer ones (paths, directories, sockets, polling) are missing in some.
const WASI: &[&str] = &[
    "args_get",
    "args_sizes_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_fdstat_get",
    "fd_read",
    "fd_seek",
    "fd_write",
    "proc_exit",
    "random_get",
    "sched_yield",
];

/// The host functions of proxy-wasm's ABI 0.2.1. The SDK's default methods refer to most of them, gRPC
/// included, so a module imports more than it calls.
const PROXY: &[&str] = &[
    "proxy_add_header_map_value",
    "proxy_call_foreign_function",
    "proxy_close_stream",
    "proxy_continue_stream",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_done",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_current_time_nanoseconds",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_get_log_level",
    "proxy_get_metric",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_get_status",
    "proxy_grpc_call",
    "proxy_grpc_cancel",
    "proxy_grpc_close",
    "proxy_grpc_send",
    "proxy_grpc_stream",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_remove_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_resolve_shared_queue",
    "proxy_send_local_response",
    "proxy_set_buffer_bytes",
    "proxy_set_effective_context",
    "proxy_set_header_map_pairs",
    "proxy_set_property",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
];

/// What a host looks for in a filter.
const EXPORTS: &[&str] = &["_initialize", "proxy_abi_version_0_2_1", "proxy_on_memory_allocate"];

/// Finds imports that a host may lack, exports that it would miss, and a build without SIMD, which is
/// right but several times slower.
pub fn check(file: &str, module: &[u8]) -> Result<Vec<Finding>, wasmparser::BinaryReaderError> {
    let facts = Facts::read(module)?;
    let mut found = Vec::new();
    for (module, name) in &facts.imports {
        let allowed = match module.as_str() {
            "wasi_snapshot_preview1" => WASI.contains(&name.as_str()),
            // Some versions of the SDK import one function under two names.
            "env" => PROXY.contains(&name.as_str()),
            _ => false,
        };
        if !allowed {
            let what =
                format!("imports {module}.{name}, which is not on the list of allowed imports");
            found.push(Finding::new(file, 0, what));
        }
    }
    for name in EXPORTS.iter().filter(|name| !facts.exports.contains(**name)) {
        found.push(Finding::new(file, 0, format!("does not export {name}")));
    }
    if !facts.simd {
        found.push(Finding::new(file, 0, "has no SIMD instruction: was RUSTFLAGS set?"));
    }
    Ok(found)
}

#[derive(Default)]
struct Facts {
    imports: BTreeSet<(String, String)>,
    exports: BTreeSet<String>,
    simd: bool,
}

impl Facts {
    fn read(module: &[u8]) -> Result<Self, wasmparser::BinaryReaderError> {
        let mut facts = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        facts.imports.insert((import.module.to_owned(), import.name.to_owned()));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        facts.exports.insert(export?.name.to_owned());
                    }
                }
                Payload::CodeSectionEntry(body) if !facts.simd => {
                    for operator in body.get_operators_reader()? {
                        facts.simd |= is_simd(&operator?);
                    }
                }
                _ => {}
            }
        }
        Ok(facts)
    }
}

fn is_simd(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::V128Load { .. } | Operator::V128Store { .. } | Operator::V128Const { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with one import and one export `e`, of a function that holds a SIMD constant if `simd`.
    fn module(import_module: &str, import: &str, simd: bool) -> Vec<u8> {
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        let mut section = |id: u8, content: &[u8]| {
            bytes.extend([id, u8::try_from(content.len()).unwrap()]);
            bytes.extend(content);
        };
        let text = |s: &str| [&[u8::try_from(s.len()).unwrap()], s.as_bytes()].concat();
        section(1, &[1, 0x60, 0, 0]);
        section(2, &[&[1][..], &text(import_module), &text(import), &[0, 0]].concat());
        section(3, &[1, 0]);
        section(7, &[&[1][..], &text("e"), &[0, 1]].concat());
        let mut body = vec![0];
        if simd {
            body.extend([0xfd, 12]);
            body.extend([0; 16]);
            body.push(0x1a);
        }
        body.push(0x0b);
        let length = u8::try_from(body.len()).unwrap();
        section(10, &[&[1, length][..], &body].concat());
        bytes
    }

    fn whats(module: &[u8]) -> String {
        let found = check("x.wasm", module).unwrap();
        found.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn imports_outside_the_list_are_found() {
        assert!(!whats(&module("env", "proxy_log", true)).contains("imports"));
        assert!(!whats(&module("wasi_snapshot_preview1", "fd_write", true)).contains("imports"));
        assert!(whats(&module("wasi_snapshot_preview1", "path_link", true)).contains("imports"));
        assert!(whats(&module("env", "pthread_create", true)).contains("imports"));
        assert!(whats(&module("__wbindgen_placeholder__", "x", true)).contains("imports"));
    }

    #[test]
    fn missing_exports_and_missing_simd_are_found() {
        let with = whats(&module("env", "proxy_log", true));
        assert!(with.contains("does not export _initialize"));
        assert!(!with.contains("SIMD"));
        assert!(whats(&module("env", "proxy_log", false)).contains("SIMD"));
    }

    #[test]
    fn a_broken_module_is_an_error() {
        assert!(check("x.wasm", b"\0asm\x01\0\0\0\x02\xff").is_err());
    }
}
