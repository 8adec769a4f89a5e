//! The resources.

use crate::content::PICTURE;
use crate::handler::FRESH_MS;
use rmcp::model::{
    CacheScope, ErrorData, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate,
};
use serde_json::json;

pub(crate) fn list() -> Vec<Resource> {
    let resource = |uri: &str, name: &str, mime: &str| {
        Resource::new(uri, name)
            .with_description("A fixture of the conformance suite.")
            .with_mime_type(mime)
    };
    vec![
        resource("test://static-text", "static-text", "text/plain"),
        resource("test://static-binary", "static-binary", "image/png"),
        resource("test://watched-resource", "watched-resource", "text/plain"),
    ]
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new("test://template/{id}/data", "template");
    vec![
        template
            .with_description("A fixture of the conformance suite.")
            .with_mime_type("application/json"),
    ]
}

pub(crate) fn read(uri: &str) -> Result<ReadResourceResponse, ErrorData> {
    let contents = match uri {
        "test://static-text" => {
            ResourceContents::text("This is the content of the static text resource.", uri)
        }
        "test://static-binary" => ResourceContents::blob(PICTURE, uri).with_mime_type("image/png"),
        "test://watched-resource" => ResourceContents::text("watched", uri),
        _ => {
            let id = uri
                .strip_prefix("test://template/")
                .and_then(|rest| rest.strip_suffix("/data"));
            let Some(id) = id else {
                return Err(ErrorData::invalid_params(
                    "Resource not found",
                    Some(json!({ "uri": uri })),
                ));
            };
            let data =
                json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            ResourceContents::text(data.to_string(), uri).with_mime_type("application/json")
        }
    };
    let mut result = ReadResourceResult::new(vec![contents]);
    result.ttl_ms = Some(FRESH_MS);
    result.cache_scope = Some(CacheScope::Public);
    Ok(result.into())
}
