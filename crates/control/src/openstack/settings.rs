//! What OpenStack's command-line tools read from `OS_…`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::Uri;

/// How the control plane proves who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user's password, for tokens of any project in which the user has a role.
    Password {
        /// The user's name.
        user: String,
        /// The domain of the user.
        user_domain: String,
        /// The password.
        password: String,
        /// The user's own project.
        project: String,
        /// The domain of the project.
        project_domain: String,
    },
    /// An application credential, which is of one project.
    Application {
        /// Its id.
        id: String,
        /// Its secret.
        secret: String,
    },
}

impl fmt::Debug for Credentials {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, project, .. } => write!(f, "password of {user} in {project}"),
            Self::Application { id, .. } => write!(f, "application credential {id}"),
        }
    }
}

/// Where the cloud is, and who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Keystone, with `/v3`.
    pub auth_url: String,
    /// Who asks.
    pub credentials: Credentials,
    /// The region; any if absent.
    pub region: Option<String>,
    /// `public`, `internal` or `admin`.
    pub interface: String,
    /// Certificates of authorities that are trusted, PEM; the system's if absent.
    pub ca_file: Option<PathBuf>,
    /// A call is answered within this time or has failed.
    pub timeout: Duration,
}

/// The system's certificates where Debian and its relatives, and Red Hat's, have them.
const CA_FILES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// A call is answered within this time. Nova needs seconds to take a server on.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Settings {
    /// As in the environment: `OS_AUTH_URL`, and `OS_USERNAME`, `OS_PASSWORD`, `OS_PROJECT_NAME`
    /// (with `OS_USER_DOMAIN_NAME`, `OS_PROJECT_DOMAIN_NAME`) or `OS_APPLICATION_CREDENTIAL_ID`,
    /// `OS_APPLICATION_CREDENTIAL_SECRET`; `OS_REGION_NAME`, `OS_INTERFACE`, `OS_CACERT`.
    ///
    /// # Errors
    /// Which variable is missing.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let optional = |name: &str| variable(name).filter(|value| !value.is_empty());
        let needed = |name: &str| {
            optional(name)
                .ok_or_else(|| format!("{name} is not set: source the cloud's openrc file"))
        };
        let domain = |name: &str| optional(name).unwrap_or_else(|| "Default".to_owned());
        let auth_url = needed("OS_AUTH_URL")?;
        let is_address = auth_url.parse::<Uri>().is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|host| !host.is_empty())
                && uri.query().is_none()
        });
        if !is_address {
            return Err(format!(
                "OS_AUTH_URL={auth_url} is no address: it is http://HOST:PORT or https://HOST/PATH, \
                 as in the cloud's openrc file"
            ));
        }
        let auth_url = auth_url.trim_end_matches('/');
        let version = if auth_url.ends_with("/v3") { "" } else { "/v3" };
        let credentials = match optional("OS_APPLICATION_CREDENTIAL_ID") {
            Some(id) => {
                Credentials::Application { id, secret: needed("OS_APPLICATION_CREDENTIAL_SECRET")? }
            }
            None => Credentials::Password {
                user: needed("OS_USERNAME")?,
                user_domain: domain("OS_USER_DOMAIN_NAME"),
                password: needed("OS_PASSWORD")?,
                project: needed("OS_PROJECT_NAME")?,
                project_domain: domain("OS_PROJECT_DOMAIN_NAME"),
            },
        };
        Ok(Self {
            auth_url: format!("{auth_url}{version}"),
            credentials,
            region: optional("OS_REGION_NAME"),
            interface: optional("OS_INTERFACE").unwrap_or_else(|| "public".to_owned()),
            ca_file: optional("OS_CACERT").map(PathBuf::from),
            timeout: TIMEOUT,
        })
    }

    /// The file with certificates, if there is one.
    pub(super) fn ca_path(&self) -> Option<PathBuf> {
        let of_system = || CA_FILES.iter().map(PathBuf::from).find(|path| path.exists());
        self.ca_file.clone().or_else(of_system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_openrc_file_is_understood_and_what_is_missing_is_named() {
        let mut set = vec![
            ("OS_AUTH_URL", "http://keystone:5000"),
            ("OS_USERNAME", "weft"),
            ("OS_PASSWORD", "secret-word"),
            ("OS_PROJECT_NAME", "service"),
        ];
        let settings = read(&set).unwrap();
        assert_eq!(settings.auth_url, "http://keystone:5000/v3");
        assert_eq!((settings.interface.as_str(), settings.region.as_deref()), ("public", None));
        let shown = format!("{settings:?}");
        assert!(shown.contains("weft") && !shown.contains("secret-word"), "{shown}");
        set.push(("OS_APPLICATION_CREDENTIAL_ID", "a1"));
        let error = read(&set).unwrap_err();
        assert!(error.contains("OS_APPLICATION_CREDENTIAL_SECRET"), "{error}");
        set.push(("OS_APPLICATION_CREDENTIAL_SECRET", "b"));
        set[0].1 = "https://keystone/identity/v3/";
        let settings = read(&set).unwrap();
        assert_eq!(settings.auth_url, "https://keystone/identity/v3");
        assert!(matches!(settings.credentials, Credentials::Application { .. }));
        for wrong in ["foo", "foo:5000", "http://", "ftp://keystone", "http://a b", "http://a?b=c"]
        {
            let set = [("OS_AUTH_URL", wrong)];
            let error = read(&set).unwrap_err();
            assert!(error.contains("OS_AUTH_URL") && error.contains(wrong), "{error}");
        }
        for missing in 0..4 {
            let without: Vec<_> = (0..4).filter(|at| *at != missing).map(|at| set[at]).collect();
            assert!(read(&without).unwrap_err().contains(set[missing].0));
        }
    }
}
