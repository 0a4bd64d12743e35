//! `weft bench accounting`, short: charges against observers outside Weft, each beside books that
//! are wrong, on a real daemon with tenants that are killed.

use serde_json::Value;

use crate::benchmark;

/// What is wrong with the books, if anything: figures are held against controls of the same run.
fn faults(document: &Value) -> Vec<String> {
    let of = |part: &str, name: &str| benchmark::number(document, part, name);
    // The document has the names that others look for.
    assert!(of("figures", "closure") >= of("figures", "closure_paced"), "{document}");
    // A busy machine's error is well below that of a book that leaves something out. On the paced
    // device, whose time no other program takes, little is left.
    let mut pairs = vec![("error_max".to_owned(), "error_control".to_owned(), 5.0)];
    for (clock, below) in [("real", 5.0), ("paced", 20.0)] {
        assert!(of("figures", &format!("closure_{clock}_kills")) >= 2.0, "{document}");
        let without = format!("closure_{clock}_without_the_killed");
        pairs.push((format!("closure_{clock}"), without, below));
    }
    let is_wrong = |(figure, control, below): &(String, String, f64)| {
        let (figure_is, control_is) = (of("figures", figure), of("controls", control));
        let wrong = figure_is > control_is / below;
        wrong.then(|| format!("{figure} {figure_is:.4} beside {control} {control_is:.4}"))
    };
    pairs.iter().filter_map(is_wrong).collect()
}

#[test]
fn charges_are_what_observers_saw_with_killed_sessions_too() {
    benchmark::finds_no_fault("accounting", faults);
}
