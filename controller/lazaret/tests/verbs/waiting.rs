//! Waiting for the end of a run: the exit status is the run's, whatever happens to the reader, to the
//! controller, or to patience.

use crate::script::{Controller, RUN, run_json};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_reader_that_goes_away_does_not_make_a_failed_run_a_success() {
    let controller = Controller::start().await;
    controller.fail_run();
    for writes in 0..3 {
        let said = controller
            .says_to_head(&["delegate", "--wait", "--", "make", "test"], writes)
            .await;
        assert_eq!(said.exit, 1, "{}", said.err);
        assert!(said.err.contains("failed: "), "{}", said.err);
    }
    let said = controller
        .says_to_head(&["delegate", "--wait", "--json", "--", "make"], 0)
        .await;
    assert_eq!(said.exit, 1);
    let said = controller
        .says_to_head(&["exec", RUN, "--", "false"], 0)
        .await;
    assert_eq!((said.exit, said.err.as_str()), (1, "err\nexit status 1\n"));
    // What is only shown ends with its reader, as ever.
    let said = controller.says_to_head(&["logs", RUN, "-f"], 1).await;
    assert_eq!((said.exit, said.out.as_str()), (0, "line 1\nli"));
}

#[tokio::test]
async fn a_controller_that_is_away_for_a_moment_is_waited_for() {
    let controller = Controller::start().await;
    controller.fail_run();
    controller.break_stream_after(3);
    controller.away(&[(502, None), (503, None), (504, None), (429, None)]);
    let said = controller
        .says(&["delegate", "--wait", "--json", "--", "make", "test"])
        .await;
    assert_eq!(said.exit, 1, "{}", said.err);
    assert_eq!(said.json(), run_json("failed"));
    // One note for one outage.
    let notes = said
        .err
        .matches("the controller is away (http_502)")
        .count();
    assert_eq!((notes, said.err.matches("away").count()), (1, 1));
}

#[tokio::test]
async fn the_last_look_at_a_run_is_as_patient() {
    let controller = Controller::start().await;
    // The events come at once; their first request is answered by 502 and the second is not.
    controller.away(&[(502, None)]);
    let said = controller.says(&["logs", RUN, "-f"]).await;
    assert_eq!(
        (said.exit, said.out.as_str()),
        (0, "line 1\nline 2\nline 3\n")
    );
    controller.away(&[(503, Some(1)), (502, None)]);
    let begun = Instant::now();
    let run = controller.looks_patiently().await;
    assert_eq!(run["run"], RUN);
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_refusal_that_does_not_pass_ends_the_waiting() {
    let controller = Controller::start().await;
    controller.away(&[(403, None), (502, None)]);
    let said = controller.says(&["logs", RUN, "-f"]).await;
    assert_eq!(said.exit, 3);
    assert_eq!(controller.asked().len(), 1);
}

#[tokio::test]
async fn ctrl_c_says_that_the_run_goes_on_and_prints_it_as_it_is() {
    let controller = Controller::start().await;
    let said = controller.is_interrupted().await;
    assert_eq!(said.exit, 1);
    assert_eq!(said.json(), run_json("succeeded"));
    assert!(said.err.contains("the run goes on"), "{}", said.err);
}
