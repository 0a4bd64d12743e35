//! Users by name, as people know them.

use std::collections::BTreeMap;

use nix::unistd::{Uid, User};

/// The number of a user who is given by name or by number.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("there is no user `{text}`; give a name or a number")),
        Err(error) => Err(format!("the user `{text}` cannot be looked up: {error}")),
    }
}

/// Names of users, each looked up once.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<u32, String>);

impl Names {
    /// A user's name, or the number of one who has none here.
    pub(crate) fn of(&mut self, uid: u32) -> &str {
        let name = || match User::from_uid(Uid::from_raw(uid)) {
            Ok(Some(user)) => user.name,
            Ok(None) | Err(_) => uid.to_string(),
        };
        self.0.entry(uid).or_insert_with(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(number("root"), Ok(0));
        assert_eq!(number("4000000001"), Ok(4_000_000_001));
        assert!(number("no such user").unwrap_err().contains("no such user"));
        let mut names = Names::default();
        assert_eq!(names.of(0), "root");
        assert_eq!(names.of(4_000_000_001), "4000000001");
    }
}
