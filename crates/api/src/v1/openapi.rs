//! The OpenAPI 3.1 document, made of the table of calls and of the types.

use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use super::calls::{Call, Method, Query};
use super::problem::{Kind, Problem};
use super::resources::{
    Attachment, AuditEntry, Batch, Cgpu, CgpuState, CreatedToken, Endpoint, EndpointChange, Event,
    EventKind, Gateway, Gpu, GpuChange, Instance, InstanceState, Locality, Mode, NewBatch,
    NewInstance, NewNode, NewQuota, NewToken, Node, Operation, OperationKind, OperationState,
    Project, ProjectChange, Quota, Role, Token, UsageRecord, Variable,
};
use super::{IDEMPOTENCY_HEADER, PAGE_DEFAULT, PAGE_MAX, VERSION, VERSION_HEADER, WAIT_MS_MAX};

/// The document, as JSON that people can read.
#[must_use]
pub fn document() -> String {
    let mut paths = Map::new();
    for call in Call::ALL {
        let path = paths.entry(call.path()).or_insert_with(|| json!({}));
        path[method(call.method())] = operation(*call);
    }
    let (major, minor) = VERSION;
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Weft's control plane",
            "version": format!("{major}.{minor}"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "keystone": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
            },
            "headers": {
                "Version": {"schema": {"type": "string"},
                            "description": "The newest microversion that is spoken here"},
                "RetryAfter": {"schema": {"type": "integer"},
                               "description": "After how many seconds to ask again, if that helps"},
            },
        },
    });
    // A value of strings, numbers and maps can be written.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Post => "post",
        Method::Put => "put",
        Method::Patch => "patch",
        Method::Delete => "delete",
    }
}

fn operation(call: Call) -> Value {
    let mut operation = json!({
        "operationId": call.name(),
        "summary": call.summary(),
        "parameters": parameters(call),
        "responses": {
            call.status().to_string(): answer(call),
            "default": {
                "description": "It was not done",
                "content": {"application/problem+json": {"schema": reference("Problem")}},
                "headers": {VERSION_HEADER: header("Version"), "retry-after": header("RetryAfter")},
            },
        },
    });
    if let Some(role) = call.role() {
        operation["security"] = json!([{"token": []}, {"keystone": []}]);
        operation["description"] = json!(format!("For the role `{}` and above.", role.name()));
    }
    if !call.body().is_empty() {
        operation["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": reference(call.body())}},
        });
    }
    operation
}

fn parameters(call: Call) -> Vec<Value> {
    let mut parameters = vec![json!({
        "name": VERSION_HEADER, "in": "header", "schema": {"type": "string"},
        "description": "The microversion that is spoken; the oldest if absent",
    })];
    let mut rest = call.path();
    while let Some((_, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let schema = json!({"type": "string"});
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
        rest = after;
    }
    if call.has_key() {
        parameters.push(json!({
            "name": IDEMPOTENCY_HEADER, "in": "header", "schema": {"type": "string"},
            "description": "Repeated within a day with the same body, nothing is made twice",
        }));
    }
    if call.query() == Query::Wait {
        let description = "Answered once the instance is neither made nor removed any longer, or \
                           after this time; version 1.7";
        let schema = json!({"type": "integer", "minimum": 0, "maximum": WAIT_MS_MAX, "default": 0});
        parameters.push(json!({"name": "wait_ms", "in": "query", "schema": schema,
                               "description": description}));
    }
    if matches!(call.query(), Query::Page | Query::Project) {
        let schema = json!({"type": "integer", "minimum": 1, "maximum": PAGE_MAX,
                            "default": PAGE_DEFAULT});
        parameters.push(json!({"name": "limit", "in": "query", "schema": schema}));
        let description = "`next` of the page before";
        parameters.push(json!({"name": "after", "in": "query", "schema": {"type": "string"},
                               "description": description}));
    }
    if call.query() == Query::Project {
        let description = "Of this project only; others' for administrators";
        parameters.push(json!({"name": "project", "in": "query", "schema": {"type": "string"},
                               "description": description}));
    }
    parameters
}

fn answer(call: Call) -> Value {
    let (kind, schema) = if matches!(call, Call::Metrics | Call::InstanceConsole) {
        ("text/plain", json!({"type": "string"}))
    } else if call == Call::Document {
        ("application/json", json!({"type": "object"}))
    } else {
        ("application/json", schema_of(call.answer()))
    };
    let mut answer = json!({"description": "It was done",
                            "headers": {VERSION_HEADER: header("Version")}});
    if !schema.is_null() {
        answer["content"] = json!({kind: {"schema": schema}});
    }
    answer
}

/// Of an answer; null of one that says nothing.
fn schema_of(answer: &str) -> Value {
    match answer {
        "" => Value::Null,
        page if page.starts_with('[') => json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "items": {"type": "array", "items": reference(page.trim_matches(['[', ']']))},
                "next": {"type": "string"},
            },
        }),
        one => reference(one),
    }
}

fn header(name: &str) -> Value {
    json!({"$ref": format!("#/components/headers/{name}")})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn schemas() -> Map<String, Value> {
    macro_rules! of {
        ($($name:ident),+) => {
            [$((stringify!($name), $name::schema())),+]
        };
    }
    let all = of!(
        Attachment,
        AuditEntry,
        Batch,
        Cgpu,
        CgpuState,
        CreatedToken,
        Endpoint,
        EndpointChange,
        Event,
        EventKind,
        Gateway,
        Gpu,
        GpuChange,
        Instance,
        InstanceState,
        Kind,
        Locality,
        Mode,
        NewBatch,
        NewInstance,
        NewNode,
        NewQuota,
        NewToken,
        Node,
        Operation,
        OperationKind,
        OperationState,
        Problem,
        Project,
        ProjectChange,
        Quota,
        Role,
        Token,
        UsageRecord,
        Variable
    );
    let written = |schema| serde_json::to_value(schema).unwrap_or_default();
    all.into_iter().map(|(name, schema)| (name.to_owned(), written(schema))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{BATCH_MAX, CGPUS_MAX, SLA_US, WEIGHTS};
    use super::*;

    /// Everything that is referred to is there.
    #[test]
    fn the_document_is_whole() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > Call::ALL.len());
        for reference in references {
            let found = document.pointer(reference.trim_start_matches('#'));
            assert!(found.is_some_and(Value::is_object), "{reference} is not there");
        }
        let said =
            |path: &str| document["paths"][path]["get"]["responses"]["200"]["content"].clone();
        assert!(said("/v1/instances/{id}/console")["text/plain"].is_object());
        assert!(said("/openapi.json")["application/json"].is_object());
        assert!(said("/health").is_null(), "it says nothing");
        let fields = &document["components"]["schemas"]["NewInstance"]["required"];
        assert_eq!(*fields, json!(["cgpus"]));
    }

    /// The document names bounds that are checked elsewhere.
    #[test]
    fn the_document_says_what_numbers_may_be() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let bounds = |of: &str, name: &str| {
            let field = &document["components"]["schemas"][of]["properties"][name];
            (field["minimum"].as_u64().unwrap(), field["maximum"].as_u64().unwrap())
        };
        assert_eq!(bounds("NewBatch", "count"), (1, BATCH_MAX.into()));
        assert_eq!(bounds("NewInstance", "cgpus"), (1, CGPUS_MAX.into()));
        assert_eq!(bounds("NewInstance", "sla_us"), (*SLA_US.start(), *SLA_US.end()));
        let weights: (u64, u64) = ((*WEIGHTS.start()).into(), (*WEIGHTS.end()).into());
        assert_eq!(bounds("NewInstance", "weight"), weights);
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| collect(value, references));
            }
            Value::Array(list) => list.iter().for_each(|value| collect(value, references)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
