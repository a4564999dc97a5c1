#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| warmpath_core::fuzzing::peers(data));
