//! The OpenAPI document. It is made from the handlers; what holds for all of them (the bearer key,
//! the scope, the problem document) is added here from the route table.

use crate::table::{Access, Table};
use lazaret_api::public::Problem;
use lazaret_domain::DenialCode;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, Ref,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

const BEARER: &str = "key";

const ABOUT: &str = "Errors are application/problem+json (RFC 9457) with a stable `code`. Unknown fields and unknown \
    query names are refused. Mutations take `Idempotency-Key`. `POST /api/v1/runs`, `POST /api/v1/runs/{run}/exec` and \
    `POST /api/v1/keys` do their work once under the same key of the same API key; with another body it is \
    `idempotency_mismatch`, and where the answer cannot be given again `already_done`. Every other mutation is \
    idempotent by itself; there the header is checked for its form and means nothing. JSON bodies are at most 1 MiB, uploads 96 MiB, and a body that pauses for 30 seconds is given up.";

/// The document of all routes.
#[must_use]
pub fn document() -> OpenApi {
    let table = crate::routes::table(axum::routing::any(crate::problem::no_such_route));
    let mut document = table.into_document();
    // The router marks a parameter that spans segments by a star; OpenAPI has no such mark.
    document.paths.paths = std::mem::take(&mut document.paths.paths)
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    document
}

/// The document before any route was added.
pub(crate) fn frame() -> OpenApi {
    let mut components = Components::new();
    components.add_security_scheme(
        BEARER,
        SecurityScheme::Http(
            HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some("An API key, `lzr_…`."))
                .build(),
        ),
    );
    components
        .schemas
        .insert(Problem::name().into_owned(), Problem::schema());
    components
        .schemas
        .insert(DenialCode::name().into_owned(), codes().into());
    let info = InfoBuilder::new()
        .title("Lazaret")
        .version("1")
        .description(Some(ABOUT))
        .build();
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .build()
}

/// The codes as they are on the wire. (The derived schema shows the names of the code instead.)
fn codes() -> Schema {
    let codes = DenialCode::ALL.iter().map(|code| code.as_str());
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("The stable code of a refusal."))
        .enum_values(Some(codes))
        .build()
        .into()
}

/// Says in the document who may call an operation, and that it can refuse.
pub(crate) fn describe_access(operation: &mut Operation, access: Access) {
    let problem = ResponseBuilder::new()
        .description("Refused; `code` says why.")
        .content(
            "application/problem+json",
            ContentBuilder::new()
                .schema(Some(Ref::from_schema_name(Problem::name())))
                .build(),
        )
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), problem.into());
    match access {
        Access::Public => operation.security = Some(Vec::new()),
        Access::Scope(scope) => {
            operation.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
            let needs = format!("Needs a key of scope `{}`.", scope.as_str());
            operation.description = Some(
                match operation.description.take().filter(|text| !text.is_empty()) {
                    Some(text) => format!("{text}\n\n{needs}"),
                    None => needs,
                },
            );
        }
    }
}

impl Table {
    /// A table whose document has its frame.
    pub(crate) fn framed() -> Self {
        Self::new(frame())
    }
}
