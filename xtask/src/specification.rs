//! `SPECIFICATION.md`: one promise a line, made from what `make bench` measured.
//!
//! In: JSON lines, `{"bench": PROGRAM}` before the figures of a program and `{"name", "value", "unit", "limit"}` for each
//! figure; `xtask/upstream.tsv`, what upstream needs for the same (`name<TAB>text`). Out: the document. Never: a figure that
//! was not measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

const HEAD: &str = "# Specification

One promise a line: what is measured, the limit that it is held to, what this tree took, and upstream's figure where it was
measured on the same machine. Made by `make bench` (`cargo xtask specification`); do not edit. Figures above their limit are
bold. All processes, clients and etcd included, share one machine of two cores.
";

/// A figure as a program printed it.
#[derive(Debug, PartialEq)]
struct Figure {
    name: String,
    value: f64,
    unit: String,
    limit: Option<f64>,
    bench: String,
}

/// Writes the document of the figures in a file.
///
/// # Errors
/// When a file cannot be read or written, a line is no figure, or there is none.
pub fn write(root: &Path, figures: &Path) -> Result<()> {
    let read = |file: &Path| std::fs::read_to_string(file).with_context(|| file.display().to_string());
    let figures = parse(&read(figures)?)?;
    let text = render(&figures, &upstream(&read(&root.join("xtask/upstream.tsv"))?));
    let file = root.join("SPECIFICATION.md");
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

fn parse(lines: &str) -> Result<Vec<Figure>> {
    let (mut figures, mut bench) = (Vec::new(), String::new());
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        match object["bench"].as_str() {
            Some(program) => program.clone_into(&mut bench),
            None => figures.push(figure(&object, &bench).with_context(|| format!("{line} is no figure"))?),
        }
    }
    if figures.is_empty() {
        bail!("there is no figure");
    }
    Ok(figures)
}

fn figure(object: &Value, bench: &str) -> Option<Figure> {
    Some(Figure {
        name: object["name"].as_str()?.to_owned(),
        value: object["value"].as_f64()?,
        unit: object["unit"].as_str().unwrap_or_default().to_owned(),
        limit: object["limit"].as_f64(),
        bench: bench.to_owned(),
    })
}

/// Reads `name<TAB>text` lines.
fn upstream(table: &str) -> BTreeMap<&str, &str> {
    table.lines().filter_map(|line| line.split_once('\t')).collect()
}

fn render(figures: &[Figure], upstream: &BTreeMap<&str, &str>) -> String {
    let mut text = HEAD.to_owned();
    let mut bench = None;
    for figure in figures {
        if bench != Some(&figure.bench) {
            let _ =
                write!(text, "\n## {}\n\n| promise | limit | measured | upstream |\n|---|---|---|---|\n", figure.bench);
            bench = Some(&figure.bench);
        }
        let measured = format!("{} {}", figure.value, figure.unit);
        let measured = if is_missed(figure) { format!("**{}**", measured.trim()) } else { measured.trim().to_owned() };
        let limit = figure.limit.map(|limit| limit.to_string()).unwrap_or_default();
        let other = upstream.get(figure.name.as_str()).copied().unwrap_or_default();
        let _ = writeln!(text, "| {} | {limit} | {measured} | {other} |", figure.name.replace('|', "\\|"));
    }
    text
}

/// Words in a figure's name for which more is better.
const AT_LEAST: [&str; 4] = ["rate", "(at least)", "per raw put", "delivered"];

/// Reports whether a figure is on the wrong side of its limit: rates must reach theirs, all others must stay below.
fn is_missed(figure: &Figure) -> bool {
    let at_least = AT_LEAST.iter().any(|words| figure.name.contains(words));
    figure.limit.is_some_and(|limit| if at_least { figure.value < limit } else { figure.value > limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"noise of a build
{"bench":"e2e/examples/apiserver"}
{"name":"LIST as JSON: CPU","value":31.5,"unit":"ms","limit":30}
{"name":"plain: rate","value":19000,"unit":"pods/s","limit":20000}
{"bench":"cluster bench"}
{"name":"idle RSS: kubelet","value":11,"unit":"MB","limit":20}
{"name":"size","value":3,"unit":"MB","limit":null}
"#;

    #[test]
    fn figures_are_rows_below_their_program_and_missed_limits_are_bold() {
        let text = render(&parse(LINES).expect("figures"), &upstream("idle RSS: kubelet\t90 MB\n"));
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("## ") || line.contains(" | ")).collect();
        let head = "| promise | limit | measured | upstream |";
        assert_eq!(
            rows,
            [
                "## e2e/examples/apiserver",
                head,
                "| LIST as JSON: CPU | 30 | **31.5 ms** |  |",
                "| plain: rate | 20000 | **19000 pods/s** |  |",
                "## cluster bench",
                head,
                "| idle RSS: kubelet | 20 | 11 MB | 90 MB |",
                "| size |  | 3 MB |  |",
            ]
        );
    }

    #[test]
    fn a_line_that_is_no_figure_is_named() {
        let error = parse("{\"name\":\"x\"}").expect_err("no value");
        assert!(format!("{error:#}").contains("is no figure"), "{error:#}");
        assert!(parse("nothing").is_err());
    }
}
