//! The query of a request: `path` and `area`, each once, and nothing else.

use crate::files::Area;
use lazaret_domain::{Denial, DenialCode, GuestPath};

/// A query that was read but not interpreted yet.
#[derive(Default)]
pub(super) struct Query {
    path: Option<String>,
    area: Option<String>,
}

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, Denial> {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let field = match &*name {
                "path" => &mut query.path,
                "area" => &mut query.area,
                _ => return Err(unknown(&name)),
            };
            if field.replace(value.into_owned()).is_some() {
                return Err(Denial::new(
                    DenialCode::InvalidRequest,
                    "a query parameter is given twice",
                )
                .at(name));
            }
        }
        Ok(query)
    }

    /// There is no query.
    pub(super) fn none(&self) -> Result<(), Denial> {
        match self {
            Self {
                path: None,
                area: None,
            } => Ok(()),
            _ => Err(Denial::new(
                DenialCode::UnknownField,
                "this route has no query parameters",
            )),
        }
    }

    /// A path below the workspace. No path is the workspace itself.
    pub(super) fn path(self) -> Result<GuestPath, Denial> {
        if self.area.is_some() {
            return Err(unknown("area"));
        }
        self.path_and_area().map(|(path, _)| path)
    }

    /// A path and the area it lies in.
    pub(super) fn path_and_area(self) -> Result<(GuestPath, Area), Denial> {
        let area = match self.area.as_deref() {
            None | Some("workspace") => Area::Workspace,
            Some("uploads") => Area::Uploads,
            Some(_) => {
                return Err(Denial::new(
                    DenialCode::InvalidRequest,
                    "an area is workspace or uploads",
                )
                .at("area"));
            }
        };
        let path = self
            .path
            .unwrap_or_default()
            .parse::<GuestPath>()
            .map_err(|denial| denial.at("path"))?;
        Ok((path, area))
    }
}

fn unknown(name: &str) -> Denial {
    Denial::new(
        DenialCode::UnknownField,
        "this route has no such query parameter",
    )
    .at(name)
}
