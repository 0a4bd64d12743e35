//! Which lines of a log are wanted, as people write it.

/// The directives of a text such as `weft_node::daemon=debug, info`, if there are any: without
/// spaces, and without empty ones, which `tracing_subscriber` takes for the level ERROR.
#[must_use]
pub fn directives(text: &str) -> Option<String> {
    let text = text.replace(char::is_whitespace, "");
    let all: Vec<&str> = text.split(',').filter(|one| !one.is_empty()).collect();
    (!all.is_empty()).then(|| all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_and_commas_too_many_change_nothing() {
        for text in ["info,weft_node=debug", " info , weft_node=debug,", ",info,,weft_node=debug"] {
            assert_eq!(directives(text).as_deref(), Some("info,weft_node=debug"));
        }
        assert_eq!((directives(""), directives(" , ")), (None, None));
    }
}
