//! The committed corpora as ordinary tests, for toolchains that can't fuzz.

use std::fs;
use std::path::Path;

/// Gives every input in `corpus/target` to `run`, and returns how many there were.
fn replay(target: &str, run: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let inputs = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for input in inputs {
        let path = input.expect("a folder that can be listed").path();
        eprintln!("{}", path.display());
        run(&fs::read(&path).expect("a corpus is made of files"));
        count += 1;
    }
    count
}

#[test]
fn bound() {
    assert!(replay("bound", tollgate_fuzz::bound) > 0);
}

#[test]
fn headers() {
    assert!(replay("headers", tollgate_fuzz::headers) > 0);
}

#[test]
fn keyed() {
    assert!(replay("keyed", tollgate_fuzz::keyed) > 0);
}

#[test]
fn plans() {
    assert!(replay("plans", tollgate_fuzz::plans) > 0);
}

#[test]
fn quota() {
    assert!(replay("quota", tollgate_fuzz::quota) > 0);
}
