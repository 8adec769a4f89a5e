//! `/api/v1`, and the few routes beside it. Each handler reads like a receipt: take, check, one
//! service call, answer.
#![expect(
    unused_qualifications,
    reason = "utoipa's attribute qualifies the types of parameters"
)]

mod events;
mod files;
mod hosts;
mod keys;
mod runs;
mod system;

use crate::state::Edge;
use crate::table::{Access, Table};
use axum::routing::MethodRouter;
use lazaret_api::public::Scope;
use utoipa_axum::routes;

const READ: Access = Access::Scope(Scope::Read);
const RUN: Access = Access::Scope(Scope::Run);
const OPERATE: Access = Access::Scope(Scope::Operate);
const ADMIN: Access = Access::Scope(Scope::Admin);

/// Every route with who may call it.
pub(crate) fn table(mcp: MethodRouter<Edge>) -> Table {
    Table::framed()
        .add(RUN, routes!(runs::create_run))
        .add(READ, routes!(runs::list_runs))
        .add(READ, routes!(runs::get_run))
        .add(RUN, routes!(runs::teardown_run))
        .add(RUN, routes!(runs::cancel_run))
        .add(RUN, routes!(runs::fork_run))
        .add(RUN, routes!(runs::sleep_run))
        .add(RUN, routes!(runs::wake_run))
        .add(RUN, routes!(runs::keep_run))
        .add(RUN, routes!(runs::unkeep_run))
        .add(OPERATE, routes!(runs::exec_in_run))
        .add(READ, routes!(runs::get_diff))
        .add(READ, routes!(events::get_events))
        .add(READ, routes!(events::get_log))
        .add(READ, routes!(files::list_files))
        .add(READ, routes!(files::list_artifacts))
        .add(READ, routes!(files::get_artifact))
        .add(RUN, routes!(files::put_file))
        .add(OPERATE, routes!(hosts::list_hosts))
        .add(ADMIN, routes!(hosts::enroll_host))
        .add(ADMIN, routes!(hosts::set_admission))
        .add(ADMIN, routes!(keys::list_keys))
        .add(ADMIN, routes!(keys::create_key))
        .add(ADMIN, routes!(keys::revoke_key))
        .add(OPERATE, routes!(system::get_system))
        .add(OPERATE, routes!(system::get_metrics))
        .add(READ, routes!(system::get_openapi))
        .add(Access::Public, routes!(system::get_health))
        // Each tool asks for its own scope besides.
        .add_protocol(READ, "/mcp", mcp)
}
