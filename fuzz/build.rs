//! The body of `verbs_args` is a C program, as the programs are that call what it tries.

fn main() {
    let here = "verbs_args";
    println!("cargo:rerun-if-changed={here}");
    cc::Build::new()
        .files(["verbs_args.c", "make.c", "use.c"].map(|file| format!("{here}/{file}")))
        .compile("verbs_args");
}
