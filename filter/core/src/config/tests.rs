use super::*;

const GOOD: &str = r#"{"policy":"kv_cost","fallback_cluster":"engines",
    "kv_capacity_tokens":1000,
    "backends":[{"name":"a","cluster":"a","address":"127.0.0.1:1"},
                {"name":"b","address":"[::1]:2","kv_capacity_tokens":5}],
    "models":[{"name":"m","aliases":["n"],"bundle":{"cluster":"c","path":"/m.wpb"}}]}"#;

#[test]
fn a_good_configuration() {
    let config = Config::parse(GOOD.as_bytes()).unwrap();
    assert_eq!(config.policy, Policy::KvCost);
    assert_eq!(config.backends[0].kv_capacity_tokens, NonZeroU32::new(1000));
    assert_eq!(config.backends[1].kv_capacity_tokens, NonZeroU32::new(5));
    assert_eq!(config.model_index("n"), Some(0));
    assert_eq!(config.model_index("x"), None);
    assert_eq!(config.backend_by_address("[::1]:2", None), config.backend(BackendIndex(1)));
    assert_eq!(config.backend_by_cluster("a", None), config.backend(BackendIndex(0)));
    assert_eq!(config.models[0].block_size_tokens.get(), 16);
    assert_eq!(config.models[0].streamed_usage, StreamedUsage::AsSent);
}

#[test]
fn streamed_usage_is_asked_for_only_where_configured() {
    let with = |value: &str| {
        let model = format!(r#""name":"m","streamed_usage":{value},"#);
        Config::parse(GOOD.replace(r#""name":"m","#, &model).as_bytes())
    };
    assert_eq!(with(r#""ask""#).unwrap().models[0].streamed_usage, StreamedUsage::Ask);
    assert_eq!(with(r#""as_sent""#).unwrap().models[0].streamed_usage, StreamedUsage::AsSent);
    for wrong in ["true", r#""Ask""#, "null"] {
        let Err(ConfigError::Shape { path, .. }) = with(wrong) else { panic!("{wrong}") };
        assert_eq!(path, "models[0].streamed_usage");
    }
}

#[test]
fn all_problems_are_reported_at_once_with_their_paths() {
    let bad = r#"{"body_bytes_max":0,"index_buckets":999999999,
        "backends":[{"name":""},{"name":"x","address":"localhost:1"},{"name":"x","cluster":"c"}],
        "models":[{"name":"m","block_size_tokens":0,"bundle":{"cluster":"","path":"p"}},
                  {"name":"m","bundle":{"cluster":"c","path":"/p"}}]}"#;
    let Err(ConfigError::Invalid(problems)) = Config::parse(bad.as_bytes()) else {
        panic!("accepted");
    };
    let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "body_bytes_max",
            "index_buckets",
            "models[0].block_size_tokens",
            "models[0].bundle.cluster",
            "models[0].bundle.path",
            "models[1].aliases",
            "backends[0].cluster",
            "backends[0].name",
            "backends[1].address",
            "backends[2].name",
        ]
    );
}

#[test]
fn a_session_policy_needs_its_header() {
    let with = |policy: &str, header: &str| {
        let json =
            format!(r#"{{"policy":"{policy}"{header},"backends":[{{"name":"a","cluster":"a"}}]}}"#);
        Config::parse(json.as_bytes())
    };
    let config = with("session", r#","session_header":"x-session-id""#).unwrap();
    assert_eq!(config.session_header.as_deref(), Some("x-session-id"));
    assert!(with("session", "").is_err());
    assert!(with("kv_cost", r#","session_header":"x-session-id""#).is_err());
    assert!(with("session", r#","session_header":"X-Session""#).is_err());
}

#[test]
fn shape_errors_name_the_field() {
    for (json, path) in [
        (r#"{"backends":[{"name":1}]}"#, "backends[0].name"),
        (r#"{"backends":[],"polcy":"x"}"#, "polcy"),
        (r#"{"backends":[],"policy":"best"}"#, "policy"),
        ("", "."),
        (r#"{"backends":[{"name":"a","cluster":"a"}]} x"#, "(end)"),
    ] {
        match Config::parse(json.as_bytes()) {
            Err(ConfigError::Shape { path: found, .. }) => assert_eq!(found, path, "{json}"),
            other => panic!("{json}: {other:?}"),
        }
    }
}

#[test]
fn a_server_of_several_engines_is_as_many_backends() {
    let parse = |backends: &str| {
        let json = format!(
            r#"{{"backends":{backends},"models":[{{"name":"m","bundle":{{"cluster":"c","path":"/m"}}}}]}}"#
        );
        Config::parse(json.as_bytes())
    };
    let config = parse(
        r#"[{"address":"10.0.0.1:1","cluster":"a","data_parallel_size":2,"kv_capacity_tokens":7},
            {"address":"10.0.0.2:1","data_parallel_size":1}]"#,
    )
    .unwrap();
    let names: Vec<&str> = config.backends.iter().map(|backend| backend.name.as_str()).collect();
    assert_eq!(names, ["10.0.0.1:1/0", "10.0.0.1:1/1", "10.0.0.2:1"]);
    let ranks: Vec<_> =
        config.backends.iter().map(|it| it.data_parallel.map(|it| (it.rank, it.size))).collect();
    assert_eq!(ranks, [Some((0, 2)), Some((1, 2)), None]);
    assert!(config.backends[0].is_beside(&config.backends[1]));
    assert!(!config.backends[0].is_beside(&config.backends[2]));
    let beside = |index: usize| config.engines_of(&config.backends[index]).count();
    assert_eq!([beside(0), beside(1), beside(2)], [2, 2, 1]);
    let found = |address, rank| config.backend_by_address(address, rank).map(|it| it.name.as_str());
    assert_eq!(found("10.0.0.1:1", Some(1)), Some("10.0.0.1:1/1"));
    assert_eq!((found("10.0.0.1:1", None), found("10.0.0.1:1", Some(2))), (None, None));
    assert_eq!(found("10.0.0.2:1", Some(5)), Some("10.0.0.2:1"));
    let by_cluster = config.backend_by_cluster("a", Some(0)).map(|it| it.name.as_str());
    assert_eq!(by_cluster, Some("10.0.0.1:1/0"));
    assert!(config.has_ranks_at("10.0.0.1:1", "") && config.has_ranks_at("", "a"));
    assert!(!config.has_ranks_at("10.0.0.2:1", "b"));
    for (backends, path) in [
        (r#"[{"address":"10.0.0.1:1","data_parallel_size":0}]"#, "[0].data_parallel_size"),
        (r#"[{"address":"10.0.0.1:1","data_parallel_size":257}]"#, "[0].data_parallel_size"),
        (
            r#"[{"name":"a","cluster":"a","data_parallel_size":2},{"name":"a/1","cluster":"b"}]"#,
            "[1].name",
        ),
        (r#"[{"cluster":"a","data_parallel_size":256},{"cluster":"b"}]"#, "backends: "),
    ] {
        let error = parse(backends).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn the_engine_says_what_auto_means() {
    let format = |fields: &str| {
        let text = format!(
            r#"{{"backends":[{{"cluster":"a"}}],
                "models":[{{"name":"m",{fields}"bundle":{{"cluster":"c","path":"/m"}}}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap().models[0].chat.chat_format
    };
    assert_eq!(format(""), None);
    assert_eq!(format(r#""engine":"vllm","#), None);
    assert_eq!(format(r#""engine":"llama_cpp","#), Some(ChatFormat::Template));
    assert_eq!(
        format(r#""engine":"llama_cpp","chat_format":"harmony","#),
        Some(ChatFormat::Harmony)
    );
    let unknown = r#"{"backends":[{"cluster":"a"}],
        "models":[{"name":"m","engine":"gguf","bundle":{"cluster":"c","path":"/m"}}]}"#;
    assert!(
        Config::parse(unknown.as_bytes()).unwrap_err().to_string().contains("models[0].engine")
    );
}
