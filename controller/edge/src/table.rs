//! The route table. A route is added together with who may call it, in one call that takes both: a
//! route without a class does not compile. The guard reads the same table, and so does the OpenAPI
//! document.

use crate::openapi;
use crate::state::Edge;
use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;
use lazaret_api::public::Scope;
use std::collections::BTreeMap;
use utoipa::openapi::{OpenApi, PathItem};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anybody. Such a route says nothing about anything.
    Public,
    /// A key of at least this scope.
    Scope(Scope),
}

/// A route with who may call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAccess {
    /// Its path, parameters in braces.
    pub path: String,
    /// Its method; none for a route that takes them all.
    pub method: Option<String>,
    /// Who may call it.
    pub access: Access,
}

/// Routes being gathered.
pub(crate) struct Table {
    routes: OpenApiRouter<Edge>,
    access: AccessTable,
}

/// Who may call what, by path and method; the method is empty for a route that takes them all.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessTable(BTreeMap<String, BTreeMap<String, Access>>);

impl AccessTable {
    /// Who may call this. None: the path has no such method.
    pub(crate) fn access(&self, path: &str, method: &Method) -> Option<Access> {
        let methods = self.0.get(path)?;
        // A HEAD is answered by the route for GET.
        let method = if method == Method::HEAD {
            Method::GET.as_str()
        } else {
            method.as_str()
        };
        methods.get(method).or_else(|| methods.get("")).copied()
    }

    fn insert(&mut self, path: &str, method: &str, access: Access) {
        self.0
            .entry(path.to_owned())
            .or_default()
            .insert(method.to_owned(), access);
    }
}

impl Table {
    pub(crate) fn new(document: OpenApi) -> Self {
        Self {
            routes: OpenApiRouter::with_openapi(document),
            access: AccessTable::default(),
        }
    }

    /// Adds documented routes.
    pub(crate) fn add(mut self, access: Access, routes: UtoipaMethodRouter<Edge>) -> Self {
        let (schemas, mut paths, methods) = routes;
        for (path, item) in &mut paths.paths {
            for (method, operation) in operations(item) {
                self.access.insert(path, method, access);
                openapi::describe_access(operation, access);
            }
        }
        self.routes = self.routes.routes((schemas, paths, methods));
        self
    }

    /// Adds a route that speaks a protocol of its own, and takes every method.
    pub(crate) fn add_protocol(
        mut self,
        access: Access,
        path: &str,
        methods: MethodRouter<Edge>,
    ) -> Self {
        self.access.insert(path, "", access);
        self.routes = self.routes.route(path, methods);
        self
    }

    /// All routes with who may call them.
    pub(crate) fn access(&self) -> Vec<RouteAccess> {
        let each = |(path, methods): (&String, &BTreeMap<String, Access>)| {
            let path = path.clone();
            let route = move |(method, access): (&String, &Access)| RouteAccess {
                path: path.clone(),
                method: (!method.is_empty()).then(|| method.clone()),
                access: *access,
            };
            methods.iter().map(route).collect::<Vec<_>>()
        };
        self.access.0.iter().flat_map(each).collect()
    }

    /// The router, and what the guard needs to know about it.
    pub(crate) fn split(self) -> (Router<Edge>, AccessTable) {
        (self.routes.split_for_parts().0, self.access)
    }

    /// The OpenAPI document.
    pub(crate) fn into_document(self) -> OpenApi {
        self.routes.into_openapi()
    }
}

fn operations(item: &mut PathItem) -> Vec<(&'static str, &mut utoipa::openapi::path::Operation)> {
    let all = [
        ("GET", &mut item.get),
        ("PUT", &mut item.put),
        ("POST", &mut item.post),
        ("DELETE", &mut item.delete),
        ("PATCH", &mut item.patch),
        ("HEAD", &mut item.head),
        ("OPTIONS", &mut item.options),
    ];
    all.into_iter()
        .filter_map(|(name, operation)| Some((name, operation.as_mut()?)))
        .collect()
}
