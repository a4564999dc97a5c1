//! Error answers, each in the shape that its API's clients expect.

use serde_json::json;

use super::Api;

/// The JSON body of an error answer that the filter gives itself, with `status` as its HTTP code.
///
/// Without an API, OpenAI's shape, which most gateways speak.
#[must_use]
pub fn error_body(api: Option<Api>, status: u16, message: &str) -> String {
    let body = match api {
        Some(Api::Messages) => json!({
            "type": "error",
            "error": { "type": anthropic_type(status), "message": message },
        }),
        Some(Api::OllamaChat | Api::OllamaGenerate) => json!({ "error": message }),
        Some(Api::SglangGenerate) => json!({ "error": { "message": message } }),
        _ => json!({
            "error": {
                "message": message,
                "type": openai_type(status),
                "param": null,
                "code": status,
            },
        }),
    };
    body.to_string()
}

/// The same for a request with this path: in the shape of the API that has the path, or one above it.
#[must_use]
pub fn error_body_at(path: &str, status: u16, message: &str) -> String {
    error_body(Api::from_path(path).or_else(|| above(path)), status, message)
}

/// The API with the path above this one. Paths in Ollama's folder are all its own.
fn above(path: &str) -> Option<Api> {
    if path.starts_with("/api/") {
        return Some(Api::OllamaChat);
    }
    let path = path.split('?').next()?;
    path.match_indices('/').skip(1).find_map(|(end, _)| Api::from_path(path.get(..end)?))
}

fn openai_type(status: u16) -> &'static str {
    match status {
        404 => "NotFoundError",
        429 => "RateLimitError",
        400..=499 => "BadRequestError",
        503 => "ServiceUnavailableError",
        _ => "InternalServerError",
    }
}

fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn body(api: Option<Api>, status: u16) -> Value {
        serde_json::from_str(&error_body(api, status, "no \"live\" backend\n")).unwrap()
    }

    #[test]
    fn each_api_has_its_own_shape() {
        let message = json!("no \"live\" backend\n");
        for api in [None, Some(Api::ChatCompletions), Some(Api::VllmGenerate), Some(Api::Rerank)] {
            let error = body(api, 503);
            assert_eq!(error["error"]["message"], message);
            assert_eq!(error["error"]["type"], "ServiceUnavailableError");
            assert_eq!(error["error"]["code"], 503);
        }
        let error = body(Some(Api::Messages), 503);
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("overloaded_error"))
        );
        assert_eq!(error["error"]["message"], message);
        assert_eq!(body(Some(Api::OllamaChat), 503), json!({ "error": message }));
        assert_eq!(body(Some(Api::SglangGenerate), 503)["error"]["message"], message);
    }

    #[test]
    fn the_path_says_which_shape() {
        let shape = |path: &str| error_body_at(path, 404, "x");
        let of = |api| error_body(api, 404, "x");
        for path in ["/", "", "/v1/chat/completions/y", "/v1/models", "/v1/messages2", "?/api/"] {
            assert_eq!(shape(path), of(None), "{path}");
        }
        for path in ["/v1/messages", "/v1/messages?a=/b", "/v1/messages/y/z", "/v1/messages/"] {
            assert_eq!(shape(path), of(Some(Api::Messages)), "{path}");
        }
        for path in ["/api/chat", "/api/tags", "/api/../y", "/api/generate?x"] {
            assert_eq!(shape(path), of(Some(Api::OllamaChat)), "{path}");
        }
        assert_eq!(shape("/generate/y"), of(Some(Api::SglangGenerate)));
        assert_ne!(of(None), of(Some(Api::Messages)));
    }

    #[test]
    fn the_type_follows_the_status() {
        assert_eq!(body(None, 429)["error"]["type"], "RateLimitError");
        assert_eq!(body(None, 404)["error"]["type"], "NotFoundError");
        assert_eq!(body(None, 400)["error"]["type"], "BadRequestError");
        assert_eq!(body(None, 500)["error"]["type"], "InternalServerError");
        assert_eq!(body(Some(Api::Messages), 429)["error"]["type"], "rate_limit_error");
        assert_eq!(body(Some(Api::Messages), 400)["error"]["type"], "invalid_request_error");
        assert_eq!(body(Some(Api::Messages), 500)["error"]["type"], "api_error");
    }
}
