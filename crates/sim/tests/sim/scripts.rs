//! Every script of testdata/scripts leaves its expected trace. `FARMEM_REWRITE=1` writes the actual trace;
//! inspect the difference.

use std::fs;
use std::path::PathBuf;

#[test]
fn every_script_leaves_its_trace() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/scripts");
    let mut scripts: Vec<PathBuf> =
        fs::read_dir(&folder).expect("testdata/scripts").map(|entry| entry.expect("a file").path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 10, "{} scripts", scripts.len());
    let rewrite = std::env::var_os("FARMEM_REWRITE").is_some();
    let mut wrong = Vec::new();
    for script in scripts {
        let text = fs::read_to_string(&script).expect("text");
        let name = script.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(text.starts_with("# "), "{name} opens with its story");
        let played = farmem_sim::script::play(&text).unwrap_or_else(|error| panic!("{name}, {error}"));
        if rewrite {
            fs::write(&script, &played).expect("writable");
        } else if played != text {
            let line = played
                .lines()
                .zip(text.lines())
                .position(|(a, b)| a != b)
                .unwrap_or_else(|| text.lines().count());
            let (is, was) = (played.lines().nth(line).unwrap_or(""), text.lines().nth(line).unwrap_or(""));
            wrong.push(format!("{name}:{}: `{is}` instead of `{was}`", line + 1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
