//! What a document of a benchmark says that it has no figures of.

use serde_json::Value;

/// Names of figures that are not there because the machine was too busy for the paced device in
/// every run, and why. A document without such a list has all of its figures.
pub(crate) fn voids(document: &Value) -> impl Iterator<Item = (Vec<&str>, &str)> {
    let all = document.get("void").and_then(Value::as_array).into_iter().flatten();
    all.map(|void| {
        let figures = void.get("figures").and_then(Value::as_array).into_iter().flatten();
        let why = void.get("why").and_then(Value::as_str).unwrap_or("nobody says why");
        (figures.filter_map(Value::as_str).collect(), why)
    })
}

/// Why a benchmark that was run has no document of its own: it failed, and so no figure is of it.
pub(crate) fn failed(document: &Value) -> Option<&str> {
    document.get("failed").and_then(Value::as_str)
}

/// Whether a figure is void.
pub(crate) fn is_void(document: &Value, name: &str) -> bool {
    voids(document).any(|(figures, _)| figures.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_lists_what_is_void() {
        let document = serde_json::json!({"figures": {"large": 0.5},
            "void": [{"figures": ["small", "other"], "late_share": [0.05], "why": "too busy"}]});
        let told: Vec<_> = voids(&document).collect();
        assert_eq!(told, [(vec!["small", "other"], "too busy")]);
        assert!(is_void(&document, "small") && is_void(&document, "other"));
        // The controls: what is there, a part of a name, a document without such a list.
        assert!(!is_void(&document, "large") && !is_void(&document, "smal"));
        assert_eq!(voids(&serde_json::json!({"figures": {}})).count(), 0);
        // What failed says nothing of a name.
        let document = serde_json::json!({"failed": "no GPU"});
        assert!(failed(&document) == Some("no GPU") && !is_void(&document, "large"));
    }
}
