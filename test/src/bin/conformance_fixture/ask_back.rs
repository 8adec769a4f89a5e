//! The tools of the stateless revision that ask the client back: they answer with what they want to
//! know, and the client calls again with it. What the client carries for us in between is sealed.

use crate::handler::Fixture;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, InputRequest,
    InputRequiredResult, InputResponses,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) const TOOLS: &[&str] = &[
    "test_input_required_result_capabilities",
    "test_input_required_result_elicitation",
    "test_input_required_result_list_roots",
    "test_input_required_result_multi_round",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_request_state",
    "test_input_required_result_sampling",
    "test_input_required_result_tampered_state",
];

type Answer = Result<CallToolResponse, ErrorData>;

/// Calls one of these tools. None: it is none of them.
pub(crate) fn call(
    fixture: &Fixture,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Option<Answer> {
    let none = InputResponses::new();
    let answers = request.input_responses.as_ref().unwrap_or(&none);
    let state = request.request_state.as_deref();
    Some(
        match request.name.strip_prefix("test_input_required_result_")? {
            "elicitation" => match accepted(answers, "user_name") {
                Some(content) => done(format!(
                    "Hello, {}!",
                    content["name"].as_str().unwrap_or("?")
                )),
                None => ask(&[("user_name", name_form())], None),
            },
            "sampling" => match answers
                .get("capital_question")
                .and_then(|answer| answer["content"]["text"].as_str())
            {
                Some(text) => done(text.to_owned()),
                None => ask(
                    &[(
                        "capital_question",
                        sampling("What is the capital of France?", 100),
                    )],
                    None,
                ),
            },
            "list_roots" => match answers
                .get("client_roots")
                .and_then(|answer| answer["roots"].as_array())
            {
                Some(roots) => done(format!("The client's roots: {}", json!(roots))),
                None => ask(&[("client_roots", roots())], None),
            },
            "request_state" => confirmed(fixture, state, answers),
            "tampered_state" => confirmed(fixture, state, answers),
            "multiple_inputs" => several(fixture, state, answers),
            "multi_round" => rounds(fixture, state, answers),
            "capabilities" => {
                let client = context.client_capabilities().unwrap_or_default();
                let mut wanted = Vec::new();
                if client.elicitation.is_some() {
                    wanted.push(("user_name", name_form()));
                }
                if client.sampling.is_some() {
                    wanted.push(("greeting", sampling("Generate a greeting", 50)));
                }
                if wanted.is_empty() {
                    done("the client can do nothing".to_owned())
                } else {
                    ask(&wanted, None)
                }
            }
            _ => return None,
        },
    )
}

/// Asks for a confirmation, and believes it only together with the state it was asked with.
fn confirmed(fixture: &Fixture, state: Option<&str>, answers: &InputResponses) -> Answer {
    let Some(state) = state else {
        let wanted = form("Please confirm", &json!({ "ok": { "type": "boolean" } }));
        return ask(&[("confirm", wanted)], Some(fixture.seal.seal(b"asked")));
    };
    open(fixture, state, b"asked")?;
    match accepted(answers, "confirm") {
        Some(_) => done("state-ok".to_owned()),
        None => Err(ErrorData::invalid_params(
            "the confirmation is missing",
            None,
        )),
    }
}

fn several(fixture: &Fixture, state: Option<&str>, answers: &InputResponses) -> Answer {
    let keys = ["client_roots", "greeting", "user_name"];
    if let Some(state) = state {
        open(fixture, state, b"several")?;
        if keys.iter().all(|key| answers.contains_key(*key)) {
            return done("all three were answered".to_owned());
        }
    }
    let wanted = [
        ("client_roots", roots()),
        ("greeting", sampling("Generate a greeting", 50)),
        ("user_name", name_form()),
    ];
    ask(&wanted, Some(fixture.seal.seal(b"several")))
}

fn rounds(fixture: &Fixture, state: Option<&str>, answers: &InputResponses) -> Answer {
    let second = || {
        form(
            "Step 2: What is your favorite color?",
            &json!({ "color": { "type": "string" } }),
        )
    };
    match state
        .map(|state| fixture.seal.open(state))
        .transpose()
        .map_err(refused)?
        .as_deref()
    {
        None => {
            let first = form(
                "Step 1: What is your name?",
                &json!({ "name": { "type": "string" } }),
            );
            ask(&[("step1", first)], Some(fixture.seal.seal(b"round 1")))
        }
        Some(b"round 1") if accepted(answers, "step1").is_some() => {
            ask(&[("step2", second())], Some(fixture.seal.seal(b"round 2")))
        }
        Some(b"round 2") if accepted(answers, "step2").is_some() => {
            done("both were answered".to_owned())
        }
        Some(_) => Err(ErrorData::invalid_params(
            "this is no answer to what was asked",
            None,
        )),
    }
}

fn open(fixture: &Fixture, state: &str, wanted: &[u8]) -> Result<(), ErrorData> {
    let opened = fixture.seal.open(state).map_err(refused)?;
    if opened == wanted {
        Ok(())
    } else {
        Err(ErrorData::invalid_params(
            "this state belongs elsewhere",
            None,
        ))
    }
}

fn refused(_: rmcp::model::RequestStateError) -> ErrorData {
    ErrorData::invalid_params("the state was altered", None)
}

/// What a person entered under this key, if they accepted.
pub(crate) fn accepted(answers: &InputResponses, key: &str) -> Option<Value> {
    let answer = answers.get(key)?;
    (answer["action"] == "accept")
        .then(|| answer["content"].clone())
        .filter(Value::is_object)
}

pub(crate) fn form(message: &str, properties: &Value) -> Value {
    let required: Vec<_> = properties
        .as_object()
        .into_iter()
        .flat_map(|map| map.keys().cloned())
        .collect();
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    json!({ "method": "elicitation/create", "params": { "mode": "form", "message": message, "requestedSchema": schema } })
}

fn name_form() -> Value {
    form(
        "What is your name?",
        &json!({ "name": { "type": "string" } }),
    )
}

fn sampling(text: &str, tokens: u32) -> Value {
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    json!({ "method": "sampling/createMessage", "params": { "messages": [message], "maxTokens": tokens } })
}

fn roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}

/// One round of questions.
pub(crate) fn round(
    wanted: &[(&str, Value)],
    state: Option<String>,
) -> Result<InputRequiredResult, ErrorData> {
    let requests = wanted.iter().map(|(key, request)| {
        let request: InputRequest = serde_json::from_value(request.clone())?;
        Ok(((*key).to_owned(), request))
    });
    let requests = requests
        .collect::<Result<BTreeMap<_, _>, serde_json::Error>>()
        .map_err(|why| ErrorData::internal_error(why.to_string(), None))?;
    Ok(InputRequiredResult::new(Some(requests), state))
}

fn ask(wanted: &[(&str, Value)], state: Option<String>) -> Answer {
    round(wanted, state).map(Into::into)
}

fn done(text: String) -> Answer {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}
