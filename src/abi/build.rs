//! Turns the layout list in tests/abi into assertions about the structures of src/ffi/types.rs and src/ffi/cm/types.rs.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let list = Path::new(&here).join("../../tests/abi/layouts-v64.txt");
    println!("cargo:rerun-if-changed={}", list.display());
    let list = fs::read_to_string(&list).expect("tests/abi/layouts-v64.txt is in the tree");
    let ffi = Path::new(&here).join("src/ffi");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let out = Path::new(&out);
    assert_file(
        &list,
        &ffi.join("types.rs"),
        29,
        &out.join("layout_asserts.rs"),
    );
    assert_file(
        &list,
        &ffi.join("cm/types.rs"),
        10,
        &out.join("cm_layout_asserts.rs"),
    );
}

/// The assertions about the structures of one file, of which the list must know `least`.
fn assert_file(list: &str, types: &Path, least: usize, dest: &Path) {
    println!("cargo:rerun-if-changed={}", types.display());
    let types = fs::read_to_string(types).expect("the file of types is in the tree");
    let mut out = String::new();
    let mut checked = 0;
    for body in list.split("\nstruct ").skip(1) {
        let name = body.split_whitespace().next().expect("a name follows");
        if types.contains(&format!("    struct {name} {{")) {
            assert_struct(name, body, &mut out);
            checked += 1;
        }
    }
    assert!(
        checked >= least,
        "the list no longer names our structures: {checked} found"
    );
    fs::write(dest, out).expect("OUT_DIR can be written");
}

/// One structure as pahole prints it: a member a line, `/* offset size */` at its end. Members of
/// anonymous unions lie deeper than one tab and are left to the size of the whole.
fn assert_struct(name: &str, body: &str, out: &mut String) {
    for line in body.lines().skip(1) {
        if let Some(size) = line.trim().strip_prefix("/* size: ") {
            let size = size.split(',').next().expect("a number follows");
            writeln!(out, "const _: () = assert!(size_of::<{name}>() == {size});")
                .expect("strings grow");
            return;
        }
        let Some(member) = line.strip_prefix('\t').filter(|m| !m.starts_with('\t')) else {
            continue;
        };
        let Some((declaration, numbers)) = member.split_once(';') else {
            continue;
        };
        let Some(offset) = numbers.trim().strip_prefix("/*") else {
            continue;
        };
        let offset = offset
            .split_whitespace()
            .next()
            .expect("pahole prints the offset");
        if let Some(field) = field_name(declaration) {
            writeln!(
                out,
                "const _: () = assert!(core::mem::offset_of!({name}, {field}) == {offset});"
            )
            .expect("strings grow");
        }
    }
}

/// The member's name in `int x`, `char x[64]`, `int (*x)(args)` or `} x`; None for `}`.
fn field_name(declaration: &str) -> Option<String> {
    let name = if let Some((_, rest)) = declaration.split_once("(*") {
        rest.split(')').next()?
    } else {
        declaration.split_whitespace().last()?.split('[').next()?
    };
    match name {
        "}" => None,
        "priv" | "type" => Some(format!("r#{name}")),
        _ => Some(name.into()),
    }
}
