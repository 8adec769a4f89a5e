//! The plain tools, and those of the 2025 revisions that ask the client back while they run.

use crate::content::{PICTURE, SOUND, embedded};
use crate::handler::{Change, Fixture};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ContentBlock,
    CreateMessageRequestParams, ElicitRequestParams, ErrorData, JsonObject, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, SamplingMessage, Tool,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

/// Those that ask the client back.
const ASK_BACK: &[&str] = &[
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_sampling",
];

/// All tools by name.
pub(crate) fn list() -> Vec<Tool> {
    let plain = [
        "test_audio_content",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_embedded_resource",
        "test_error_handling",
        "test_image_content",
        "test_logging_tool",
        "test_missing_capability",
        "test_multiple_content_types",
        "test_simple_text",
        "test_streaming_elicitation",
        "test_tool_with_logging",
        "test_tool_with_progress",
        "test_trigger_prompt_change",
        "test_trigger_tool_change",
    ];
    let names = plain.iter().chain(crate::ask_back::TOOLS);
    let mut tools: Vec<Tool> = names
        .map(|name| tool(name, json!({ "type": "object", "properties": {} })))
        .collect();
    for (name, argument) in [("test_elicitation", "message"), ("test_sampling", "prompt")] {
        let properties = json!({ argument: { "type": "string", "description": "What to ask." } });
        tools.push(tool(
            name,
            json!({ "type": "object", "properties": properties, "required": [argument] }),
        ));
    }
    tools.push(tool("json_schema_2020_12_tool", wide_schema()));
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
}

fn tool(name: &'static str, schema: Value) -> Tool {
    let schema: JsonObject = serde_json::from_value(schema).unwrap_or_default();
    Tool::new(name, "A fixture of the conformance suite.", schema)
}

/// A schema with the words of JSON Schema 2020-12 that the suite looks for.
fn wide_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

/// Calls one of these tools.
pub(crate) async fn call(
    fixture: &Fixture,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    if ASK_BACK.contains(&request.name.as_ref()) && !fixture.sessions {
        // The client's answer could not be brought back to this call.
        return Err(ErrorData::invalid_request(
            "there are no sessions here",
            None,
        ));
    }
    let content = match request.name.as_ref() {
        "test_simple_text" => vec![ContentBlock::text(
            "This is a simple text response for testing.",
        )],
        "test_image_content" => vec![ContentBlock::image(PICTURE, "image/png")],
        "test_audio_content" => vec![ContentBlock::audio(SOUND, "audio/wav")],
        "test_embedded_resource" => {
            vec![embedded(
                "test://embedded-resource",
                "text/plain",
                "This is an embedded resource content.",
            )]
        }
        "test_multiple_content_types" => vec![
            ContentBlock::text("Multiple content types test:"),
            ContentBlock::image(PICTURE, "image/png"),
            embedded(
                "test://mixed-content-resource",
                "application/json",
                r#"{"test":"data","value":123}"#,
            ),
        ],
        "test_error_handling" => {
            let text = "This tool intentionally returns an error for testing";
            return Ok(CallToolResult::error(vec![ContentBlock::text(text)]));
        }
        "test_tool_with_logging" => {
            for said in [
                "Tool execution started",
                "Tool processing data",
                "Tool execution completed",
            ] {
                log(context, said).await;
            }
            vec![ContentBlock::text("logged")]
        }
        "test_logging_tool" => {
            // In the stateless revision a request says itself whether it wants the log.
            if context.meta.log_level().is_some() {
                log(context, "Tool execution started").await;
            }
            vec![ContentBlock::text("done")]
        }
        "test_tool_with_progress" => {
            progress(context).await;
            vec![ContentBlock::text("done")]
        }
        "test_streaming_elicitation" => vec![ContentBlock::text("nothing was asked")],
        "test_missing_capability" => {
            let sampling = context
                .client_capabilities()
                .is_some_and(|client| client.sampling.is_some());
            if !sampling {
                let wanted = ClientCapabilities::builder().enable_sampling().build();
                return Err(ErrorData::missing_required_client_capability(wanted));
            }
            vec![ContentBlock::text("the client can sample")]
        }
        "test_trigger_tool_change" => changed(fixture, Change::Tools),
        "test_trigger_prompt_change" => changed(fixture, Change::Prompts),
        "test_sampling" => return sample(request, context).await,
        "test_elicitation" => {
            let properties = json!({
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            });
            let schema = json!({ "type": "object", "properties": properties, "required": ["username", "email"] });
            return elicit(
                context,
                argument(request, "message"),
                schema,
                "User response",
            )
            .await;
        }
        "test_elicitation_sep1034_defaults" => {
            return elicit(
                context,
                "With defaults",
                defaults(),
                "Elicitation completed",
            )
            .await;
        }
        "test_elicitation_sep1330_enums" => {
            return elicit(context, "With choices", choices(), "Elicitation completed").await;
        }
        "json_schema_2020_12_tool" => vec![ContentBlock::text("ok")],
        _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
    };
    Ok(CallToolResult::success(content))
}

fn argument<'a>(request: &'a CallToolRequestParams, name: &str) -> &'a str {
    request
        .arguments
        .as_ref()
        .and_then(|arguments| arguments.get(name))
        .and_then(Value::as_str)
        .unwrap_or("?")
}

fn changed(fixture: &Fixture, change: Change) -> Vec<ContentBlock> {
    // Nobody listening is no fault.
    let _ = fixture.changes.send(change);
    vec![ContentBlock::text("changed")]
}

async fn log(context: &RequestContext<RoleServer>, said: &str) {
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(said))
        .with_logger("conformance");
    let _ = context.peer.notify_logging_message(message).await;
}

async fn progress(context: &RequestContext<RoleServer>) {
    let Some(token) = context.meta.get_progress_token() else {
        return;
    };
    for step in [0.0, 50.0, 100.0] {
        let notice = ProgressNotificationParam::new(token.clone(), step).with_total(100.0);
        let _ = context.peer.notify_progress(notice).await;
    }
}

async fn sample(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    let wanted = CreateMessageRequestParams::new(
        vec![SamplingMessage::user_text(argument(request, "prompt"))],
        100,
    );
    Ok(match context.peer.create_message(wanted).await {
        Ok(answer) => {
            let text = answer
                .message
                .content
                .first()
                .and_then(|block| block.as_text())
                .map(|text| text.text.clone());
            CallToolResult::success(vec![ContentBlock::text(format!(
                "LLM response: {}",
                text.unwrap_or_default()
            ))])
        }
        Err(why) => CallToolResult::error(vec![ContentBlock::text(format!("not sampled: {why}"))]),
    })
}

async fn elicit(
    context: &RequestContext<RoleServer>,
    message: &str,
    schema: Value,
    said: &str,
) -> Result<CallToolResult, ErrorData> {
    let requested_schema = serde_json::from_value(schema)
        .map_err(|why| ErrorData::internal_error(why.to_string(), None))?;
    let wanted = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.to_owned(),
        requested_schema,
    };
    Ok(match context.peer.create_elicitation(wanted).await {
        Ok(answer) => {
            let action = serde_json::to_value(&answer.action).unwrap_or_default();
            let content = json!(answer.content);
            let text = format!(
                "{said}: action={}, content={content}",
                action.as_str().unwrap_or("?")
            );
            CallToolResult::success(vec![ContentBlock::text(text)])
        }
        Err(why) => CallToolResult::error(vec![ContentBlock::text(format!("not answered: {why}"))]),
    })
}

fn defaults() -> Value {
    json!({ "type": "object", "properties": {
        "name": { "type": "string", "default": "John Doe" },
        "age": { "type": "integer", "default": 30 },
        "score": { "type": "number", "default": 95.5 },
        "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
        "verified": { "type": "boolean", "default": true },
    } })
}

fn choices() -> Value {
    let titled = json!([
        { "const": "value1", "title": "First Option" },
        { "const": "value2", "title": "Second Option" },
        { "const": "value3", "title": "Third Option" },
    ]);
    json!({ "type": "object", "properties": {
        "untitledSingle": { "type": "string", "enum": ["option1", "option2", "option3"] },
        "titledSingle": { "type": "string", "oneOf": titled },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": { "type": "array", "items": { "type": "string", "enum": ["option1", "option2", "option3"] } },
        "titledMulti": { "type": "array", "items": { "anyOf": titled } },
    } })
}
