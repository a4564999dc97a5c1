//! `docs/metrics.md`.

use warmpath_core::metrics::{
    BACKEND_FAILURES, BackendMetric, DECISIONS, Definition, Failure, Kind, Metric, ModelMetric,
    Reason,
};

use crate::markdown::{code, table};

const HEAD: &str = "\
# Metrics

Written by `warmpath-docs` (`make docs`) from `filter/core/src/metrics.rs`.

The filter's metrics are Envoy's: they are on `/stats/prometheus` of Envoy's admin interface under the names \
below, and in its other statistics as `wasmcustom.<name>`. All workers count into one. A counter or gauge is \
there from the moment the configuration is loaded, a histogram after its first value. Envoy prints a type \
with each, and no help text.

A metric of a Wasm filter has no labels of its own: `reason`, `kind`, `model` and `backend` are the last part \
of the name, and the bootstrap turns it into a label. Without these rules Prometheus sees \
`warmpath_decisions_total_reason_prefix_hit`:

```yaml
";

/// The page; `bootstrap` is the text of a bootstrap, whose tag rules it shows.
#[must_use]
pub fn page(bootstrap: &str) -> String {
    let mut text = format!("{HEAD}{}```\n", stats_tags(bootstrap));
    let mut section = |title: &str, about: &str, body: String| {
        text.push_str(&format!("\n## {title}\n\n{about}\n\n{body}"));
    };
    section(
        "Decisions",
        &series(DECISIONS, "reason", "How often each reason decided where a request went."),
        labels("reason", &Reason::ALL.map(|it| (it.label(), it.help()))),
    );
    section(
        "Failures of backends",
        &series(BACKEND_FAILURES, "kind", "Attempts that failed, by what happened."),
        labels("kind", &Failure::ALL.map(|it| (it.label(), it.help()))),
    );
    section(
        "The filter",
        "Without labels.",
        metrics(&Metric::ALL.map(|it| (it.definition(), it.help()))),
    );
    section(
        "Models",
        "With the label `model`: the configured name, in which all but letters, digits and `_-/:` is `_`.",
        metrics(&ModelMetric::ALL.map(|it| (it.definition(), it.help()))),
    );
    section(
        "Backends",
        "With the label `backend`: the configured name, spelt likewise. Pushed and observed backends have \
         none: Envoy keeps each name for good. `/_warmpath/status` on the internal listener has them all.",
        metrics(&BackendMetric::ALL.map(|it| (it.definition(), it.help()))),
    );
    text
}

/// The lines of a bootstrap that turn parts of names into labels.
fn stats_tags(bootstrap: &str) -> String {
    let lines = bootstrap.lines().skip_while(|line| *line != "stats_config:");
    let lines = lines.take_while(|line| !line.is_empty());
    let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

fn series(definition: Definition, label: &str, help: &str) -> String {
    let Definition { name, kind: of, unit } = definition;
    format!("`{name}{{{label}}}`, a {} of {unit}. {help}", kind(of))
}

fn metrics(all: &[(Definition, &str)]) -> String {
    let row = |(definition, help): &(Definition, &str)| {
        let Definition { name, kind: of, unit } = definition;
        vec![code(name), kind(*of).to_owned(), (*unit).to_owned(), (*help).to_owned()]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table(&["name", "type", "unit", "meaning"], &rows)
}

fn labels(label: &str, all: &[(&str, &str)]) -> String {
    let row = |(value, help): &(&str, &str)| vec![code(value), (*help).to_owned()];
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table(&[&code(label), "meaning"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_and_label_is_there() {
        let page = page("stats_config:\n  # why\n  stats_tags:\n  - {tag_name: x}\n\nother: 1\n");
        let mut names: Vec<&str> = Reason::ALL.map(Reason::label).to_vec();
        names.extend(Metric::ALL.map(|it| it.definition().name));
        names.extend(ModelMetric::ALL.map(|it| it.definition().name));
        names.extend(BackendMetric::ALL.map(|it| it.definition().name));
        for name in names {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
        }
        assert!(page.contains("stats_config:\n  stats_tags:\n  - {tag_name: x}\n```"));
    }
}
