//! What is said of each attack, and of all together.

use serde_json::json;

use super::super::document::Document;
use super::super::{least, median, most};
use super::QUANTUM_MS;
use super::attacks::{Attack, StandIn};
use super::losses::{Loss, Outcome, Rounds, largest_by_noise};

/// What is said of each attack on a paced device, which may be void.
pub(super) const OF_EACH: [&str; 12] = [
    "loss",
    "loss_own",
    "loss_idle",
    "charge_loss",
    "rate",
    "stall_ms",
    "stall_beyond_ms",
    "utilization",
    "unpaid",
    "charged",
    "held_victim",
    "held_attacker",
];

/// What is said of all attacks together, those on a paced device included.
pub(super) const OF_ALL: [&str; 5] = [
    "victim_loss_max",
    "victim_loss_median",
    "utilization_min",
    "stall_beyond_ms_max",
    "victim_loss_control",
];

/// What is said of all attacks on the real clock.
pub(super) const OF_REAL: [&str; 3] =
    ["victim_time_loss_max", "victim_loss_max_noise", "switch_us"];

/// A figure that one outcome has.
type Of = fn(&Outcome) -> f64;

/// How the device was divided.
const DIVIDED: [(&str, Of); 4] = [
    ("utilization", |seen| seen.utilization),
    ("charged", |seen| seen.charged),
    ("held_victim", |seen| seen.held),
    ("held_attacker", |seen| seen.held_by_others),
];

/// What the attacks have in common, one value an attack; who attacks nobody is among them.
#[derive(Default)]
pub(super) struct Summary {
    losses: Vec<f64>,
    errors: Vec<f64>,
    time_losses: Vec<f64>,
    switches_us: Vec<f64>,
    utilizations: Vec<f64>,
    stalls_beyond_ms: Vec<f64>,
    controls: Vec<f64>,
}

impl Summary {
    pub(super) fn tell(&mut self, document: &mut Document, attack: &Attack, rounds: &Rounds) {
        self.tell_losses(document, attack, rounds);
        if !attack.paced {
            self.tell_real(document, attack, rounds);
        }
        self.tell_device(document, attack, rounds);
    }

    fn tell_losses(&mut self, document: &mut Document, attack: &Attack, rounds: &Rounds) {
        let loss = rounds.loss(Outcome::loss);
        self.losses.push(loss.median());
        self.errors.extend(loss.error());
        put_loss(document, attack, "loss", &loss);
        put(document, attack, "loss_own", rounds.loss(Outcome::own_loss).median());
        put(document, attack, "loss_idle", rounds.loss(Outcome::idle_loss).median());
        put_loss(document, attack, "charge_loss", &rounds.loss(Outcome::charge_loss));
        put(document, attack, "rate", rounds.rate());
    }

    fn tell_real(&mut self, document: &mut Document, attack: &Attack, rounds: &Rounds) {
        let of_time = rounds.loss(Outcome::time_loss);
        self.time_losses.push(of_time.median());
        put_loss(document, attack, "time_loss", &of_time);
        self.switches_us.push(rounds.medians(|seen| seen.switch_us).fair);
        document.row(json!({
            "attack": attack.name,
            "losses": rounds.loss(Outcome::loss).rounds(),
            "time_losses": of_time.rounds(),
            "charge_losses": rounds.loss(Outcome::charge_loss).rounds(),
        }));
    }

    fn tell_device(&mut self, document: &mut Document, attack: &Attack, rounds: &Rounds) {
        let name = attack.name;
        let stall_ms = rounds.most(|seen| seen.stall_ms);
        let beyond_ms = stall_ms.robbed - f64::from(attack.uncut_ms) - QUANTUM_MS;
        self.stalls_beyond_ms.push(beyond_ms);
        put(document, attack, "stall_ms", stall_ms.robbed);
        document.baseline(format!("stall_ms_{name}"), stall_ms.fair);
        put(document, attack, "stall_beyond_ms", beyond_ms);
        self.utilizations.push(rounds.medians(|seen| seen.utilization).robbed);
        put(document, attack, "unpaid", rounds.medians(|seen| seen.unpaid).robbed);
        for (figure, of) in DIVIDED {
            let sides = rounds.medians(of);
            put(document, attack, figure, sides.robbed);
            document.baseline(format!("{figure}_{name}"), sides.fair);
        }
    }

    /// What the victim loses without the defence, beside what it had in these rounds beside an
    /// honest competitor.
    pub(super) fn tell_control(
        &mut self,
        document: &mut Document,
        attack: &Attack,
        rounds: &Rounds,
        control: &Outcome,
    ) {
        let lost = median(&rounds.each(|fair, _| attack.loss_of_control(control, fair)));
        self.controls.push(lost);
        document.control(format!("loss_{}", attack.name), lost);
    }

    pub(super) fn sum_up(&self, document: &mut Document) {
        document.figure("victim_loss_max", most(&self.losses));
        document.figure("victim_loss_median", median(&self.losses));
        if !self.time_losses.is_empty() {
            document.figure("victim_time_loss_max", most(&self.time_losses));
            // The simulator's `real_switch`.
            document.baseline("switch_us", median(&self.switches_us));
        }
        if let Some(noise) = largest_by_noise(&self.errors) {
            document.control("victim_loss_max_noise", noise);
        }
        document.figure("utilization_min", least(&self.utilizations));
        document.figure("stall_beyond_ms_max", most(&self.stalls_beyond_ms));
        if !self.controls.is_empty() {
            document.figure("victim_loss_control", least(&self.controls));
        }
    }
}

/// What the victim loses to what stands in an attacker's place. It is no attack, and so it is in
/// nothing that is said of all.
pub(super) fn tell_stand_in(
    document: &mut Document,
    attack: &Attack,
    stand_in: StandIn,
    rounds: &Rounds,
) {
    let name = format!("{}_{}", stand_in.name, attack.name);
    let loss = rounds.loss(Outcome::loss);
    let of_time = rounds.loss(Outcome::time_loss);
    for (figure, loss) in [("loss", &loss), ("time_loss", &of_time)] {
        document.control(format!("{figure}_{name}"), loss.median());
        if let Some(error) = loss.error() {
            document.control(format!("{figure}_error_{name}"), error);
        }
    }
    document.control(format!("rate_{name}"), rounds.rate());
    for (figure, of) in DIVIDED {
        document.control(format!("{figure}_{name}"), rounds.medians(of).robbed);
    }
    document.row(json!({
        "attack": attack.name,
        "stand_in": stand_in.name,
        "losses": loss.rounds(),
        "time_losses": of_time.rounds(),
    }));
}

/// Says a figure of an attack; of who attacks nobody it is a control.
fn put(document: &mut Document, attack: &Attack, figure: &str, value: f64) {
    let name = format!("{figure}_{}", attack.name);
    if attack.is_none() {
        document.control(name, value);
    } else {
        document.figure(name, value);
    }
}

/// The same of a loss, with its standard error where there are rounds enough.
fn put_loss(document: &mut Document, attack: &Attack, figure: &str, loss: &Loss) {
    put(document, attack, figure, loss.median());
    if let Some(error) = loss.error() {
        put(document, attack, &format!("{figure}_error"), error);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::attacks::ATTACKS;
    use super::*;

    fn attack(name: &str) -> &'static Attack {
        ATTACKS.iter().find(|attack| attack.name == name).unwrap()
    }

    /// Rounds in which a victim has these parts of a device that is always busy, where half is its.
    fn rounds(parts: &[f64]) -> Rounds {
        let fair = Outcome::seen(0.5, 1.0);
        Rounds::new(parts.iter().map(|part| (fair, Outcome::seen(*part, 1.0))))
    }

    fn told(document: &Document) -> Value {
        serde_json::to_value(document).unwrap()
    }

    fn near(value: &Value, expected: f64) -> bool {
        value.as_f64().is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    /// Half of the rounds a hundredth more than half, half of them as much less.
    const QUIET: [f64; 8] = [0.505, 0.495, 0.505, 0.495, 0.505, 0.495, 0.505, 0.495];

    #[test]
    fn who_attacks_nobody_is_a_control_and_goes_through_the_same_maximum() {
        let mut document = Document::new("adversary", "real", "w");
        let mut summary = Summary::default();
        let lost = QUIET.map(|part| part - 0.05);
        summary.tell(&mut document, attack("none"), &rounds(&lost));
        summary.tell(&mut document, attack("storm"), &rounds(&QUIET));
        summary.tell_control(
            &mut document,
            attack("storm"),
            &rounds(&QUIET),
            &Outcome::seen(0.2, 1.0),
        );
        summary.sum_up(&mut document);
        let told = told(&document);
        let (figures, controls) = (&told["figures"], &told["controls"]);
        assert!(near(&controls["loss_none"], 0.1), "{told}");
        assert!(
            controls["loss_error_none"].is_number() && controls["held_victim_none"].is_number()
        );
        assert!(near(&figures["victim_loss_max"], 0.1), "what is no attack lost most: {told}");
        assert!(near(&figures["victim_loss_control"], 0.6), "it has none itself: {told}");
        let names: Vec<&String> = figures.as_object().unwrap().keys().collect();
        assert!(!names.iter().any(|name| name.ends_with("_none")), "{names:?}");
    }

    #[test]
    fn each_loss_on_the_real_clock_has_its_error_and_the_largest_its_noise() {
        let mut document = Document::new("adversary", "real", "w");
        let mut summary = Summary::default();
        for name in ["storm", "graph", "fills"] {
            summary.tell(&mut document, attack(name), &rounds(&QUIET));
        }
        summary.tell(&mut document, attack("kill"), &rounds(&[0.5]));
        summary.sum_up(&mut document);
        let told = told(&document);
        let figures = told["figures"].as_object().unwrap();
        for loss in ["loss", "time_loss", "charge_loss"] {
            let error = figures[&format!("{loss}_error_graph")].as_f64().unwrap();
            assert!((0.003..0.004).contains(&error), "{loss} of nought or a hundredth: {error}");
        }
        // The control: the paced device has one round, and what is said of one is no spread.
        assert!(!figures.contains_key("loss_error_kill") && figures.contains_key("loss_kill"));
        let noise = told["controls"]["victim_loss_max_noise"].as_f64().unwrap();
        let error = figures["loss_error_graph"].as_f64().unwrap();
        assert!((0.5 * error..error).contains(&noise), "of three: {noise}, {error} each");
        let losses = told["rows"][0]["losses"].as_array().unwrap();
        assert_eq!(losses.len(), QUIET.len());
        assert!(!figures.contains_key("victim_loss_control"), "nobody looked without a defence");
    }

    #[test]
    fn what_stands_in_for_an_attacker_is_beside_it_and_in_no_sum() {
        let mut document = Document::new("adversary", "real", "w");
        let mut summary = Summary::default();
        let pageable = attack("pageable");
        let pinned = pageable.stand_ins.iter().find(|one| one.name == "pinned").unwrap();
        summary.tell(&mut document, pageable, &rounds(&[0.45; 8]));
        tell_stand_in(&mut document, pageable, *pinned, &rounds(&[0.1; 8]));
        summary.sum_up(&mut document);
        let told = told(&document);
        assert!(near(&told["controls"]["loss_pinned_pageable"], 0.8), "{told}");
        assert!(near(&told["controls"]["rate_pinned_pageable"], 0.2), "{told}");
        assert!(near(&told["controls"]["loss_error_pinned_pageable"], 0.0), "{told}");
        assert!(near(&told["figures"]["loss_pageable"], 0.1), "{told}");
        assert!(near(&told["figures"]["victim_loss_max"], 0.1), "{told}");
    }

    /// A void attack's figures are those that it would have.
    #[test]
    fn what_is_void_is_all_that_is_said_of_a_paced_attack() {
        let mut document = Document::new("adversary", "paced", "w");
        Summary::default().tell(&mut document, attack("kill"), &rounds(&[0.5]));
        let told = told(&document);
        let names: Vec<&String> = told["figures"].as_object().unwrap().keys().collect();
        let mut expected = OF_EACH.map(|figure| format!("{figure}_kill"));
        expected.sort_unstable();
        assert_eq!(names, expected.iter().collect::<Vec<_>>());
    }
}
