//! The prompts.

use crate::ask_back;
use crate::content::{PICTURE, embedded};
use rmcp::model::{
    ContentBlock, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult, Prompt,
    PromptArgument, PromptMessage, Role,
};
use serde_json::json;

pub(crate) fn list() -> Vec<Prompt> {
    let prompt = |name: &str, arguments: &[&str]| {
        let arguments = arguments
            .iter()
            .map(|name| {
                PromptArgument::new(*name)
                    .with_description("A value.")
                    .with_required(true)
            })
            .collect::<Vec<_>>();
        Prompt::new(
            name,
            Some("A fixture of the conformance suite."),
            Some(arguments),
        )
    };
    vec![
        prompt("test_input_required_result_prompt", &[]),
        prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
        prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
        prompt("test_prompt_with_image", &[]),
        prompt("test_simple_prompt", &[]),
    ]
}

pub(crate) fn get(request: &GetPromptRequestParams) -> Result<GetPromptResponse, ErrorData> {
    let argument = |name: &str| {
        let value = request
            .arguments
            .as_ref()
            .and_then(|arguments| arguments.get(name))
            .and_then(|value| value.as_str());
        value
            .map(str::to_owned)
            .ok_or_else(|| ErrorData::invalid_params(format!("{name} is missing"), None))
    };
    let said = |text: String| PromptMessage::new_text(Role::User, text);
    let messages = match request.name.as_str() {
        "test_simple_prompt" => vec![said("This is a simple prompt for testing.".to_owned())],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1")?, argument("arg2")?);
            vec![said(format!(
                "Prompt with arguments: arg1='{first}', arg2='{second}'"
            ))]
        }
        "test_prompt_with_embedded_resource" => vec![
            PromptMessage::new(
                Role::User,
                embedded(
                    &argument("resourceUri")?,
                    "text/plain",
                    "Embedded resource content for testing.",
                ),
            ),
            said("Please process the embedded resource above.".to_owned()),
        ],
        "test_prompt_with_image" => vec![
            PromptMessage::new(Role::User, ContentBlock::image(PICTURE, "image/png")),
            said("Please analyze the image above.".to_owned()),
        ],
        "test_input_required_result_prompt" => {
            let answer = request
                .input_responses
                .as_ref()
                .and_then(|answers| ask_back::accepted(answers, "user_context"));
            let Some(answer) = answer else {
                let wanted = ask_back::form(
                    "What context should the prompt use?",
                    &json!({ "context": { "type": "string" } }),
                );
                return Ok(ask_back::round(&[("user_context", wanted)], None)?.into());
            };
            vec![said(format!(
                "Prompt in this context: {}",
                answer["context"]
            ))]
        }
        _ => return Err(ErrorData::invalid_params("there is no such prompt", None)),
    };
    Ok(GetPromptResult::new(messages).into())
}
