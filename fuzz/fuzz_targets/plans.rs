#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_fuzz::plans(data));

#[cfg(not(fuzzing))]
fn main() {}
