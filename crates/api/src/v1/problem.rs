//! Errors: `application/problem+json` (RFC 9457).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares the kinds of problems: name, status, and title for people.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:literal $name:literal $title:literal;)+) => {
        /// What kind of problem, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum Kind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)+
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The HTTP status.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$kind => $status,)+ }
            }

            /// A title for people.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)+ }
            }
        }
    };
}

kinds! {
    /// The request is not understood.
    Malformed = 400 "urn:weft:malformed" "the request is not understood";
    /// No token, or none that is known.
    Unauthenticated = 401 "urn:weft:unauthenticated" "the request shows no valid token";
    /// The token's role does not allow it.
    Forbidden = 403 "urn:weft:forbidden" "the token's role does not allow this";
    /// The project's quota does not allow it.
    Quota = 403 "urn:weft:quota" "the project's quota does not allow this";
    /// There is no such thing, or it is another project's.
    NotFound = 404 "urn:weft:not-found" "there is no such thing";
    /// The path knows other methods.
    Method = 405 "urn:weft:method" "the path knows other methods";
    /// The microversion is not spoken here.
    Version = 406 "urn:weft:version" "the version is not spoken here";
    /// It is there already, in use, or being changed.
    Conflict = 409 "urn:weft:conflict" "the state of things does not allow this now";
    /// No GPU has room.
    NoCapacity = 409 "urn:weft:no-capacity" "there is no room for this now";
    /// The request is too large.
    TooLarge = 413 "urn:weft:too-large" "the request is too large";
    /// The body is of a kind that is not read here.
    MediaType = 415 "urn:weft:media-type" "the body is of a kind that is not read here";
    /// The request is understood, and asks for what cannot be.
    Invalid = 422 "urn:weft:invalid" "the request asks for what cannot be";
    /// Something here failed.
    Internal = 500 "urn:weft:internal" "the control plane failed";
    /// Another replica of the control plane makes changes.
    NotLeader = 503 "urn:weft:not-leader" "another replica of the control plane makes changes";
    /// The store does not answer.
    StoreAway = 503 "urn:weft:store-away" "the control plane's store does not answer";
    /// Too much to do; try again.
    Busy = 503 "urn:weft:busy" "the control plane has too much to do";
}

/// What is not done now may be asked for again after so many seconds: a replica that ends gives
/// its lease back at once, and a store that is started again answers as soon.
const RETRY_AFTER_S: u64 = 1;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// What kind.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The kind, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened, and to what.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Where the replica answers that makes changes, if this one does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Seconds after which it may be asked again, as in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl Problem {
    /// Of that kind, with what happened.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let (title, status) = (kind.title().to_owned(), kind.status());
        let retry_after_s = (status == 503).then_some(RETRY_AFTER_S);
        Self { kind, title, status, detail: detail.into(), hint: None, leader: None, retry_after_s }
    }

    /// And what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_what_rfc_9457_says() {
        let problem = Problem::new(Kind::Quota, "3 of 2 cGPUs").hint("ask");
        let text = serde_json::to_string(&problem).unwrap();
        let plain = r#"{"type":"urn:weft:quota","title":"the project's quota does not allow this","status":403,"detail":"3 of 2 cGPUs","hint":"ask"}"#;
        assert_eq!(text, plain);
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
    }

    #[test]
    fn what_may_go_better_soon_says_when_to_ask_again() {
        for kind in Kind::ALL {
            let problem = Problem::new(*kind, "");
            assert_eq!(problem.retry_after_s.is_some(), kind.status() == 503, "{kind:?}");
        }
    }

    #[test]
    fn every_kind_has_a_status_of_an_error() {
        for kind in Kind::ALL {
            assert!((400..600).contains(&kind.status()), "{kind:?}");
        }
    }
}
