//! Completion scripts for shells.

use clap_complete::Shell;

use crate::arguments::{Entry, OPTIONS};

/// A completion script.
pub(crate) fn completion(shell: Shell) -> String {
    let mut command = clap::Command::new("gsaas").disable_help_flag(true);
    for Entry(name, value, _, what) in OPTIONS {
        let mut option = clap::Arg::new(*name).long(*name).help(*what);
        option = match *value {
            "" => option.action(clap::ArgAction::SetTrue),
            values if values.contains('|') => option.value_parser(
                values.split('|').map(clap::builder::PossibleValue::new).collect::<Vec<_>>(),
            ),
            "FILE" => option.value_hint(clap::ValueHint::FilePath),
            _ => option,
        };
        command = command.arg(option);
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "gsaas", &mut script);
    with_one_dash(shell, &String::from_utf8_lossy(&script))
}

/// What bash takes for three words, `-mode=shared`, as two.
const BASH_SIGN: &str = r#"    prev="$3"
    if [[ "${COMP_WORDS[COMP_CWORD]}" == "=" ]]; then
        cur=""
        prev="${COMP_WORDS[COMP_CWORD-1]}"
    elif [[ "${prev}" == "=" ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
"#;

/// The script for options as they are documented: clap knows names of several letters behind two
/// dashes only.
fn with_one_dash(shell: Shell, script: &str) -> String {
    let mut parts = script.split("--");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let dashed = if OPTIONS.iter().all(|entry| entry.0 != name) {
            format!("--{name}")
        } else if shell != Shell::Bash {
            format!("-{name}")
        } else if rest.starts_with(')') {
            format!("-{name}|--{name}")
        } else {
            format!("-{name} --{name}")
        };
        text.push_str(&dashed);
        text.push_str(rest);
    }
    text.replace("    prev=\"$3\"\n", BASH_SIGN)
        // To zsh, no letters that stand for options together.
        .replace("(-s -S -C)", "(-S -C)")
        .replace("(-s -C)", "(-C)")
        // To fish.
        .replace("complete -c gsaas -l ", "complete -c gsaas -o ")
}
