//! Reading the tree: files, functions, tokens, dependency lists.
//!
//! Everything here works on text. rustfmt keeps the text regular enough: a function's last line is a
//! closing brace at the indentation of its first.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the tree.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root, with slashes.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// A function and how long it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Lines, from its signature to its closing brace.
    pub lines: usize,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every source file in `proto`, `src`, `tests`, `tools`, `fuzz` with one of these extensions.
pub fn files(extensions: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    for top in ["proto", "src", "tests", "tools", "fuzz"] {
        walk(&root().join(top), top, extensions, &mut found);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(dir: &Path, path: &str, extensions: &[&str], found: &mut Vec<File>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (full, path) = (entry.path(), format!("{path}/{name}"));
        if full.is_dir() {
            if name != "target" {
                walk(&full, &path, extensions, found);
            }
        } else if extensions.iter().any(|e| name.ends_with(e))
            && let Ok(text) = fs::read_to_string(&full)
        {
            found.push(File { path, text });
        }
    }
}

/// A list of rules: lines without comments and blank ones.
pub fn rules(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("rules")
        .join(name);
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|l| l.trim().to_owned())
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect()
}

/// Does `path` match `pattern`, where `*` stands for any text without a slash?
pub fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, tail)) => path.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|i| rest.is_char_boundary(*i))
                .take_while(|i| !rest[..*i].contains('/'))
                .any(|i| matches(tail, &rest[i..]))
        }),
    }
}

/// The functions of formatted Rust source.
pub fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let one_line = line.trim_end().ends_with(['}', ';']);
        let rest = lines[start..].iter();
        let length = match rest.clone().position(|l| l.trim_end() == close) {
            Some(n) if !one_line => n + 1,
            _ => 1,
        };
        // a declaration without a body ends at its semicolon, before any brace
        let declared = rest
            .clone()
            .take(length)
            .take_while(|l| !l.contains('{'))
            .any(|l| l.trim_end().ends_with(';'));
        found.push(Function {
            name,
            lines: if declared { 1 } else { length },
        });
    }
    found
}

fn function_name(line: &str) -> Option<String> {
    let mut rest = line.trim_start();
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "default ",
        "const ",
        "async ",
        "unsafe ",
        "extern \"C\" ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    Some(
        rest.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect(),
    )
}

/// Rust source without comments and string contents, line by line.
pub fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut in_string = false;
        let mut last = ' ';
        for (i, c) in line.char_indices() {
            if !in_string && line[i..].starts_with("//") {
                break;
            }
            if c == '"' && last != '\\' && last != '\'' {
                in_string = !in_string;
            }
            if !in_string || c == '"' {
                out.push(c);
            }
            last = c;
        }
        out.push('\n');
    }
    out
}

/// Does `code` have `word` as a word of its own?
pub fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(i, _)| !code[..i].ends_with(part) && !code[i + word.len()..].starts_with(part))
}

/// Names of our own crates in the `[dependencies]` of a Cargo.toml, without the prefix.
pub fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest
        .split("\n[dependencies]")
        .nth(1)
        .unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|l| l.strip_prefix("rocebud-"))
        .map(|l| {
            l.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '-')
                .collect()
        })
        .collect()
}
