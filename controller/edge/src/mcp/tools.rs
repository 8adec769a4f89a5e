//! The MCP handler: lists the tools, and lets a call through if the caller's scope covers it.

use crate::auth::Caller;
use crate::mcp::{call, catalog, reply};
use axum::http::request::Parts;
use lazaret_domain::Denial;
use lazaret_services::{Principal, Services};
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;

const INSTRUCTIONS: &str = "Lazaret runs a task in a microVM of its own. `delegate` starts a run and answers with its \
    id; `status` waits for it; `watch` shows what it prints; `diff` and `read_file` fetch what it made; `teardown` \
    removes everything it held. Nothing you do here cancels a run except `cancel` and `teardown`.";

/// A list of tools may be kept for five minutes.
const TOOLS_FRESH_MS: u64 = 300_000;

/// The product's tools.
#[derive(Clone)]
pub struct Tools {
    pub(super) services: Services,
    pub(super) stop: CancellationToken,
}

impl Tools {
    /// Tools over these services; calls that wait answer when `stop` is cancelled.
    #[must_use]
    pub fn new(services: Services, stop: CancellationToken) -> Self {
        Self { services, stop }
    }
}

/// Who asks: the caller that the guard put into the HTTP request.
fn caller(context: &RequestContext<RoleServer>) -> Result<Principal, Denial> {
    let parts = context.extensions.get::<Parts>();
    let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
    caller
        .map(|caller| caller.0.clone())
        .ok_or_else(crate::auth::unauthenticated)
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("lazaret", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = ListToolsResult::with_all_items(catalog::list());
        // The same for every caller, and for as long as this build runs.
        list.ttl_ms = Some(TOOLS_FRESH_MS);
        list.cache_scope = Some(CacheScope::Public);
        Ok(list)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        catalog::find(name).map(|spec| spec.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(spec) = catalog::find(&request.name) else {
            return Err(ErrorData::invalid_params("there is no such tool", None));
        };
        let admitted = caller(&context).and_then(|by| by.require(spec.scope).map(|()| by));
        let answer = match admitted {
            Ok(by) => {
                call::call(
                    self,
                    spec.kind,
                    by,
                    request.arguments.unwrap_or_default(),
                    &context,
                )
                .await
            }
            Err(denial) => Err(denial),
        };
        Ok(match answer {
            Ok(reply) => reply.into_result(),
            Err(denial) => reply::refusal(&denial),
        }
        .into())
    }
}
