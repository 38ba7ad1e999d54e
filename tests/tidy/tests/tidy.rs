//! The rules. A failure lists every offender.

use std::collections::BTreeMap;
use std::path::Path;

use rocebud_tidy::{File, code, dependencies, files, functions, has_word, matches, root, rules};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const README_LINES_MAX: usize = 20;

fn none(offenders: Vec<String>, rule: &str) {
    assert!(
        offenders.is_empty(),
        "{rule}:\n  {}",
        offenders.join("\n  ")
    );
}

#[test]
fn no_file_is_longer_than_800_lines() {
    let long = files(&[".rs", ".c", ".h", ".py", ".sh", ".awk"])
        .into_iter()
        .map(|f| (f.text.lines().count(), f.path))
        .filter(|(n, _)| *n > FILE_LINES_MAX)
        .map(|(n, path)| format!("{path}: {n}"))
        .collect();
    none(long, "a file has at most 800 lines: split it by role");
}

#[test]
fn no_function_is_longer_than_70_lines() {
    let known: Vec<String> = rules("long.txt");
    let allowed = |path: &str, name: &str| -> usize {
        let of = |rule: &String| {
            let mut w = rule.split_whitespace();
            (w.next() == Some(path) && w.next() == Some(name)).then(|| w.next()?.parse().ok())?
        };
        known.iter().find_map(of).unwrap_or(FUNCTION_LINES_MAX)
    };
    let mut long = Vec::new();
    for file in files(&[".rs"]) {
        for f in functions(&file.text) {
            if f.lines > allowed(&file.path, &f.name) {
                long.push(format!("{}: {} has {} lines", file.path, f.name, f.lines));
            }
        }
    }
    none(long, "a function has at most 70 lines (aim for 50)");
}

#[test]
fn unsafe_is_only_where_the_list_says() {
    let allowed = rules("unsafe.txt");
    let offenders = files(&[".rs"])
        .into_iter()
        .filter(|f| has_word(&code(&f.text), "unsafe"))
        .map(|f| f.path)
        .filter(|path| !allowed.iter().any(|p| matches(p, path)))
        .collect();
    none(
        offenders,
        "unsafe belongs into the files of tests/tidy/rules/unsafe.txt",
    );
}

#[test]
fn imports_point_one_way() {
    let rules: BTreeMap<String, Vec<String>> = rules("imports.txt")
        .iter()
        .filter_map(|l| l.split_once(':'))
        .map(|(c, d)| {
            (
                c.to_owned(),
                d.split_whitespace().map(str::to_owned).collect(),
            )
        })
        .collect();
    let mut offenders = Vec::new();
    for manifest in files(&["Cargo.toml"]) {
        let name = manifest
            .text
            .lines()
            .find_map(|l| l.strip_prefix("name = \"rocebud-"));
        let Some(name) = name.map(|n| n.trim_end_matches('"')) else {
            continue;
        };
        let Some(allowed) = rules.get(name) else {
            offenders.push(format!("{name} is not in rules/imports.txt"));
            continue;
        };
        for used in dependencies(&manifest.text) {
            if !allowed.contains(&used) {
                offenders.push(format!("{name} may not depend on {used}"));
            }
        }
    }
    none(offenders, "imports point one way (ARCHITECTURE.md)");
}

#[test]
fn what_programs_load_is_optimised_as_a_whole() {
    let of_ours = |m: &File| m.path == "src/abi/Cargo.toml" || m.path == "src/shim/Cargo.toml";
    let types = |m: &File| -> Vec<String> {
        let line = m.text.lines().find_map(|l| l.strip_prefix("crate-type = "));
        let list = line
            .unwrap_or_default()
            .split('#')
            .next()
            .unwrap_or_default();
        list.split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let offenders = files(&["Cargo.toml"])
        .into_iter()
        .filter(of_ours)
        .filter(|m| types(m).len() != 1)
        .map(|m| format!("{}: {:?}", m.path, types(&m)))
        .collect();
    none(
        offenders,
        "one crate type each: beside another one cargo leaves LTO out, without a word",
    );
}

#[test]
fn proto_has_no_std() {
    let mut offenders = Vec::new();
    for file in files(&[".rs"])
        .into_iter()
        .filter(|f| f.path.starts_with("proto/"))
    {
        let in_tests = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
        let text = code(&file.text);
        // what follows #[cfg(test)] is a test module: it stands last in a file
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        if !in_tests && has_word(production, "std") {
            offenders.push(format!("{}: std", file.path));
        }
        if file.path.ends_with("src/lib.rs") && !text.contains("no_std") {
            offenders.push(format!("{}: no #![no_std]", file.path));
        }
    }
    none(
        offenders,
        "proto has no clock, socket, file or thread: core and alloc only",
    );
}

#[test]
fn every_room_says_what_lives_there() {
    let mut offenders = Vec::new();
    for manifest in files(&["Cargo.toml"]) {
        let room = manifest.path.trim_end_matches("/Cargo.toml");
        let readme = root().join(room).join("README.md");
        match std::fs::read_to_string(&readme) {
            Err(_) => offenders.push(format!("{room}: no README.md")),
            Ok(text) if text.lines().count() > README_LINES_MAX => {
                offenders.push(format!("{room}/README.md: {} lines", text.lines().count()));
            }
            Ok(_) => {}
        }
    }
    none(offenders, "each room has a README of at most 20 lines");
}

#[test]
fn nothing_is_left_to_fix() {
    let marks = [
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("XX", "X:"),
        "todo!(",
        "unimplemented!(",
    ];
    let offenders = files(&[".rs", ".c", ".h", ".py", ".sh"])
        .into_iter()
        .filter(|f| !f.path.starts_with("tests/tidy/"))
        .filter(|f| marks.iter().any(|m| f.text.contains(m)))
        .map(|f| f.path)
        .collect();
    none(offenders, "say it in an issue, not in the source");
}

#[test]
fn every_file_of_the_front_door_is_there() {
    let door = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        ".ci/run",
    ];
    let missing = door.iter().filter(|f| !Path::new(&root()).join(f).exists());
    none(missing.map(|f| (*f).to_owned()).collect(), "missing");
}

#[test]
fn architecture_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap_or_default();
    let list = text
        .split("## Read in this order")
        .nth(1)
        .unwrap_or_default();
    let list = list.split("\n## ").next().unwrap_or_default();
    let mut base = String::new();
    let mut missing = Vec::new();
    for path in list
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|p| p.contains(['/', '.']))
    {
        // a bare file name stands beside the file named before it
        let full = if path.contains('/') {
            path.to_owned()
        } else {
            format!("{base}/{path}")
        };
        base = full
            .rsplit_once('/')
            .map(|(d, _)| d.to_owned())
            .unwrap_or_default();
        if !root().join(&full).exists() {
            missing.push(full);
        }
    }
    none(missing, "the reading order names what is not there");
}

#[test]
fn the_rules_see_what_they_are_for() {
    let source = "impl X {\n    pub fn long(\n        a: u8,\n    ) {\n        b();\n    }\n    fn one() {}\n}\n";
    let found: Vec<_> = functions(source)
        .into_iter()
        .map(|f| (f.name, f.lines))
        .collect();
    assert_eq!(found, [("long".to_owned(), 5), ("one".to_owned(), 1)]);
    assert!(has_word(&code("let a = unsafe { b };"), "unsafe"));
    assert!(!has_word(
        &code("// unsafe\nlet a = \"unsafe\"; unsafe_op();"),
        "unsafe"
    ));
    assert!(matches("src/*/sys.rs", "src/a/sys.rs") && !matches("src/*/sys.rs", "src/a/b/sys.rs"));
    assert_eq!(
        dependencies("x\n[dependencies]\nrocebud-wire.workspace = true\n[dev]\nrocebud-a = 1"),
        ["wire"]
    );
}
