//! What others hold on to, frozen: the OpenAPI document and the tools.

use lazaret_domain::DenialCode;
use lazaret_edge::{document, mcp, route_access};
use serde_json::Value;

fn frozen(name: &str, value: &Value) {
    insta::with_settings!({ snapshot_path => "../golden", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_json_snapshot!(name, value);
    });
}

#[test]
fn the_openapi_document_is_as_frozen() {
    let document = serde_json::to_value(document()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let codes = document["components"]["schemas"]["DenialCode"]["enum"]
        .as_array()
        .unwrap();
    assert_eq!(codes.len(), DenialCode::ALL.len());
    assert!(
        DenialCode::ALL
            .iter()
            .all(|code| codes.contains(&code.as_str().into()))
    );
    frozen("openapi", &document);
}

#[test]
fn every_route_is_documented_and_says_who_may_call_it() {
    let document = serde_json::to_value(document()).unwrap();
    for route in route_access() {
        let Some(method) = &route.method else {
            continue;
        };
        let operation = &document["paths"][route.path.replace("{*", "{")][method.to_lowercase()];
        assert!(
            operation["summary"].is_string() && operation["security"].is_array(),
            "{method} {}",
            route.path
        );
        assert!(
            operation["responses"]["default"].is_object(),
            "{method} {}",
            route.path
        );
    }
}

#[test]
fn the_tools_are_as_frozen() {
    let tools = mcp::tool_list();
    assert!(tools.is_sorted_by(|a, b| a.name < b.name));
    for tool in &tools {
        assert_eq!(
            tool.input_schema["additionalProperties"], false,
            "{}",
            tool.name
        );
        for (name, property) in tool.input_schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{}: {name}", tool.name);
        }
        assert_eq!(
            tool.output_schema.as_ref().unwrap()["type"],
            "object",
            "{}",
            tool.name
        );
    }
    frozen("mcp_tools", &serde_json::to_value(tools).unwrap());
}
