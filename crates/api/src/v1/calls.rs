//! The table of calls: server, client and OpenAPI document are made of it.

use super::resources::Role;

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Looks.
    Get,
    /// Makes.
    Post,
    /// Makes or replaces, once or often.
    Put,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// Its name in a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// What may stand behind the question mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// Nothing.
    None,
    /// `limit` and `after`.
    Page,
    /// Those and `project`, for administrators.
    Project,
    /// `wait_ms`.
    Wait,
}

/// Declares the calls: name, method, path, role (none: no token is asked for), status, query,
/// request body, answer, and half a line about it.
macro_rules! calls {
    ($($call:ident: $method:ident $path:literal $role:expr, $status:literal, $query:ident,
       $body:literal -> $answer:literal, $summary:literal;)+) => {
        /// A call of the REST interface.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Call {
            $(#[doc = $summary] $call,)+
        }

        impl Call {
            /// All of them, in the order of the document.
            pub const ALL: &[Self] = &[$(Self::$call),+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$call => stringify!($call),)+ }
            }

            /// Its method.
            #[must_use]
            pub fn method(self) -> Method {
                match self { $(Self::$call => Method::$method,)+ }
            }

            /// Its path, with what varies in braces.
            #[must_use]
            pub fn path(self) -> &'static str {
                match self { $(Self::$call => $path,)+ }
            }

            /// The least role that may; none if no token is asked for.
            #[must_use]
            pub fn role(self) -> Option<Role> {
                match self { $(Self::$call => $role,)+ }
            }

            /// The status of success.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$call => $status,)+ }
            }

            /// What may stand behind the question mark.
            #[must_use]
            pub fn query(self) -> Query {
                match self { $(Self::$call => Query::$query,)+ }
            }

            /// The type of the request's body; empty without one.
            #[must_use]
            pub fn body(self) -> &'static str {
                match self { $(Self::$call => $body,)+ }
            }

            /// The type of the answer; in square brackets for a page of it; empty without one.
            #[must_use]
            pub fn answer(self) -> &'static str {
                match self { $(Self::$call => $answer,)+ }
            }

            /// What it does, in half a line.
            #[must_use]
            pub fn summary(self) -> &'static str {
                match self { $(Self::$call => $summary,)+ }
            }
        }
    };
}

impl Call {
    /// Whether it may have an idempotency key, with which it is carried out once.
    #[must_use]
    pub fn has_key(self) -> bool {
        matches!(self, Self::InstanceCreate | Self::BatchCreate)
    }
}

const ANYBODY: Option<Role> = None;
const READER: Option<Role> = Some(Role::Reader);
const MEMBER: Option<Role> = Some(Role::Member);
const ADMIN: Option<Role> = Some(Role::Admin);

calls! {
    Health: Get "/health" ANYBODY, 200, None, "" -> "", "Whether the process answers";
    Readiness: Get "/ready" ANYBODY, 200, None, "" -> "", "Whether the store answers";
    Document: Get "/openapi.json" ANYBODY, 200, None, "" -> "", "This document";
    Metrics: Get "/metrics" ADMIN, 200, None, "" -> "", "Prometheus text";
    NodeList: Get "/v1/nodes" ADMIN, 200, Page, "" -> "[Node]", "GPU nodes";
    NodePut: Put "/v1/nodes/{name}" ADMIN, 200, None, "NewNode" -> "Node",
        "Uses a GPU node, or looks at its GPUs again";
    NodeShow: Get "/v1/nodes/{name}" ADMIN, 200, None, "" -> "Node", "A GPU node";
    NodeDelete: Delete "/v1/nodes/{name}" ADMIN, 204, None, "" -> "",
        "Forgets a GPU node on which nobody has a cGPU";
    GpuList: Get "/v1/gpus" ADMIN, 200, Page, "" -> "[Gpu]", "GPUs";
    GpuShow: Get "/v1/gpus/{id}" ADMIN, 200, None, "" -> "Gpu", "A GPU";
    GpuChange: Patch "/v1/gpus/{id}" ADMIN, 200, None, "GpuChange" -> "Gpu",
        "Drains a GPU, or puts it back into service";
    GpuDelete: Delete "/v1/gpus/{id}" ADMIN, 204, None, "" -> "",
        "Forgets a GPU that its node does not have any longer";
    EndpointList: Get "/v1/endpoints" ADMIN, 200, Page, "" -> "[Endpoint]",
        "Endpoints of compute hosts";
    EndpointChange: Patch "/v1/endpoints/{host}" ADMIN, 200, None, "EndpointChange" -> "Endpoint",
        "Drains the endpoint of a compute host, or puts it back into service";
    EndpointDelete: Delete "/v1/endpoints/{host}" ADMIN, 204, None, "" -> "",
        "Takes an endpoint out of service: what it led ends, if it was drained before";
    CgpuList: Get "/v1/cgpus" READER, 200, Project, "" -> "[Cgpu]", "cGPUs that somebody has";
    InstanceList: Get "/v1/instances" READER, 200, Project, "" -> "[Instance]",
        "Instances that are not gone";
    InstanceCreate: Post "/v1/instances" MEMBER, 202, None, "NewInstance" -> "Instance",
        "Reserves GPUs and begins to make a VM with them";
    BatchCreate: Post "/v1/batches" MEMBER, 202, None, "NewBatch" -> "Batch",
        "Reserves GPUs for several equal VMs, for all of them or none, and begins to make them";
    InstanceShow: Get "/v1/instances/{id}" READER, 200, Wait, "" -> "Instance", "An instance";
    InstanceCgpus: Get "/v1/instances/{id}/cgpus" READER, 200, Page, "" -> "[Cgpu]",
        "An instance's cGPUs";
    InstanceConsole: Get "/v1/instances/{id}/console" READER, 200, None, "" -> "",
        "What an instance printed";
    InstanceAttachment: Get "/v1/instances/{id}/attachment" MEMBER, 200, None, "" -> "Attachment",
        "What an instance must know to reach its cGPUs, where it was not made with it: secrets";
    InstanceDelete: Delete "/v1/instances/{id}" MEMBER, 202, None, "" -> "Instance",
        "Begins to take an instance away";
    OperationShow: Get "/v1/operations/{id}" READER, 200, None, "" -> "Operation",
        "How far an operation is";
    ProjectList: Get "/v1/projects" ADMIN, 200, Page, "" -> "[Project]", "Projects";
    ProjectPut: Put "/v1/projects/{name}" ADMIN, 200, None, "ProjectChange" -> "Project",
        "Makes a project, or changes its quota";
    ProjectShow: Get "/v1/projects/{name}" READER, 200, None, "" -> "Project",
        "A project's quota and what it has";
    UsageList: Get "/v1/usage" READER, 200, Project, "" -> "[UsageRecord]",
        "Who had how much for how long";
    AuditList: Get "/v1/audit" ADMIN, 200, Page, "" -> "[AuditEntry]", "Who did what";
    TokenList: Get "/v1/tokens" ADMIN, 200, Page, "" -> "[Token]", "Tokens, without secrets";
    TokenCreate: Post "/v1/tokens" ADMIN, 201, None, "NewToken" -> "CreatedToken",
        "Makes a token";
    TokenDelete: Delete "/v1/tokens/{name}" ADMIN, 204, None, "" -> "", "Takes a token back";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_calls_are_the_same() {
        let keys: BTreeSet<_> =
            Call::ALL.iter().map(|call| format!("{:?} {}", call.method(), call.path())).collect();
        assert_eq!(keys.len(), Call::ALL.len());
    }

    /// A call under the key of another one would be taken for it, where bodies are alike.
    #[test]
    fn what_is_made_under_a_key_is_made_by_a_body_of_its_own() {
        let keyed: Vec<_> = Call::ALL.iter().filter(|call| call.has_key()).collect();
        let bodies: BTreeSet<_> = keyed.iter().map(|call| call.body()).collect();
        assert!(keyed.len() == 2 && bodies.len() == 2, "{keyed:?}");
    }

    #[test]
    fn who_changes_something_shows_a_token() {
        for call in Call::ALL.iter().filter(|call| call.method() != Method::Get) {
            assert!(call.role() > READER, "{}", call.name());
        }
    }
}
