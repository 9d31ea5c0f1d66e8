"""Tests that take long, marked `slow` by name: all cases of a test, or the one in brackets.

`make check` leaves them out.

Named here and not where they stand, so that what `make check` leaves out can be seen at a glance. A name of no test
fails `tests/test_suite.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES = {
    "test_cli_ui.py",  # servers in processes of their own
    "test_flower_examples.py",  # whole Flower deployments
    "test_flower_grace.py",
    "test_lab_pages.py",  # the pages of all results
    "test_native_processors.py",  # compiles
    "test_docs_site.py",  # builds the documentation
    "test_report_browser.py",  # a real browser
    "test_reproduce.py",
    "test_results.py",
    "test_stranger.py",  # installs
    "test_web_browser.py",  # a real browser
}
TESTS = {
    # pages
    "test_a_page_of_long_runs_stays_small",
    # accountant
    "test_a_late_round_that_all_clients_hide_costs_no_more_than_is_counted",
    "test_a_table_has_the_ledgers_of_odometers_of_one_client_each",
    "test_many_clients_have_a_table_that_agrees_with_single_ones",
    "test_sampled_batches_of_many_clients_compose_as_those_of_single_ones",
    # states
    "test_a_client_that_is_killed_anywhere_answers_a_round_once",
    "test_a_torn_line_does_not_count_and_any_other_is_refused",
    # files
    "test_a_client_keeps_its_state_and_identity_without_flock_and_modes",
    "test_importing_lightdp_needs_no_module_of_one_system",
    # keys
    "test_every_excerpt_has_the_hash_of_the_whole_and_shows_what_was_asked_for",
    "test_tree_equals_the_oracle",
    # auditing
    "test_a_closed_pipe_does_not_change_the_exit_code",
    "test_memory_does_not_grow_with_values",
    "test_no_lie_gets_more_than_is_claimed",
    "test_how_much_of_the_plan_was_played_is_said",
    "test_signs_that_were_not_all_tried_give_an_exact_mu_of_at_least_so_much",
    "test_what_an_attacker_finds_is_said_in_the_words_of_all_outputs",
    # cli
    "test_a_table_with_sites_and_persons_trains_and_says_for_one_person",
    "test_heart_trains_with_accuracy_for_each_hospital",
    "test_statistics_of_the_data_are_named_not_private_everywhere",
    "test_the_first_training_prints_what_its_page_shows",
    "test_the_tutorial_runs_as_written",
    "test_the_page_is_written",
    "test_a_run_prints_its_plan_and_table_and_writes_log_and_page",
    "test_a_run_that_late_uploads_end_says_what_helps",
    "test_html_needs_no_network",
    "test_plot_with_json_prints_json_only",
    "test_runs_that_do_not_compare_are_said_not_to",
    "test_being_asked_to_terminate_is_ctrl_c",
    "test_plot_writes_one_whole_file",
    "test_the_command_writes_the_page_and_prints_the_figures",
    "test_python_m_works_without_docstrings_too",
    "test_the_list_of_commands_imports_none_and_a_command_imports_what_it_needs",
    "test_neither_command_needs_flower_or_torch",
    "test_a_run_killed_before_its_first_minute_says_how_to_go_on_and_does",
    # web
    "test_a_training_on_flower_is_listed_followed_and_audited",
    "test_the_command_and_the_python_that_are_copied_make_the_same_plan",
    "test_the_report_of_runs_asks_for_nothing_and_keeps_out_of_the_other_pages",
    "test_the_audit_is_that_of_the_command",
    "test_a_log_that_contradicts_itself_does_not_stand_its_audit",
    # pages of the documentation
    *(
        f"test_a_page_does_what_it_shows[docs/{page}.md]"
        for page in (
            *("evidence/comparison", "evidence/results", "how-to/audit", "how-to/flower", "how-to/membership"),
            *("how-to/operate", "how-to/resume", "how-to/train", "how-to/ui", "reference/configuration", "theory"),
            *("tutorials/flower", "tutorials/planning"),
        )
    ),
    "test_a_command_that_is_wrong_is_found",
    # tutorials
    "test_an_own_model_on_own_arrays_learns_and_comes_back_from_its_file",
    "test_what_was_simulated_trains_on_flower_alike",
    # federation
    "test_sampled_batches_count_in_a_total_as_whole_ones",
    # flower
    "test_memory_of_long_vectors_is_reused_in_the_next_round_and_was_not_before",
    "test_after_a_crash_the_ledger_of_every_node_is_the_servers",
    "test_a_closing_round_is_held_only_if_something_is_left_to_repair",
    "test_a_plan_travels_as_its_arguments",
    "test_a_plan_whose_clip_or_batches_are_smaller_than_the_nodes_is_refused",
    "test_evaluation_is_left_out_if_there_are_too_few_nodes",
    "test_every_shape_and_type_comes_back_as_it_went",
    "test_of_80_small_runs_so_many_are_let_in_as_the_sum_of_squares_allows",
    "test_sampled_batches_count_without_amplification_and_each_round_beyond_the_plans_too",
    "test_the_model_is_the_sum_of_what_was_used_and_no_mask_is_used_twice",
    "test_a_client_that_is_late_in_every_round_does_not_end_the_training_of_the_others",
    "test_another_process_waits_for_the_lock",
    "test_a_training_with_faults_is_the_same_where_processes_live_on",
    "test_sampled_batches_count_without_amplification_in_whichever_roster_they_were",
    "test_a_node_keeps_its_own_budget_whatever_the_server_counts",
    "test_a_killed_server_goes_on_and_every_round_is_answered_once",
    "test_a_log_of_several_rosters_holds_and_adds_up_what_a_client_spends",
    "test_flowers_own_simulation_engine_runs_it",
    "test_metrics_are_logged_and_the_page_shows_the_run",
    "test_nodes_that_enrol_again_and_again_and_never_answer_end_the_training",
    # lab
    "test_a_trial_starts_from_the_file_and_is_not_run_twice",
    "test_an_interrupt_keeps_the_weights_so_far",
    "test_steps_lower_the_loss",
    "test_training_moves_all_layers_follows_from_the_seed_and_keeps_its_command",
    "test_a_run_without_a_network_loads_no_module_of_the_lab",
    "test_any_compared_scheme_trains_and_its_rounds_take_time[paillier]",
    "test_any_scheme_has_a_row_with_its_figures_and_named_noise[paillier]",
    "test_a_round_with_a_modulus_of_2048_bits_gives_the_exact_sum",
    "test_a_run_that_is_kept_is_not_run_again",
    "test_after_the_closing_rounds_only_individual_noise_is_left",
    "test_each_seed_is_tested_on_a_tenth_that_it_does_not_train_on",
    "test_json_is_a_record_that_can_be_shown_and_drawn_again",
    "test_the_sheet_draws_every_row_and_dashes_what_was_not_measured",
    "test_updates_are_the_same_for_every_scheme_and_inside_the_clip",
    "test_what_cannot_be_had_says_why_and_has_no_figures[paillier]",
    # auditing
    "test_published_claims_are_off_by_as_much_as_the_docs_say",
    "test_sampled_figures_are_those_of_dp_accounting",
    "test_noise_planned_for_the_rounds_that_happen_holds_and_for_fewer_does_not[0.1]",
    "test_a_sampled_log_is_recomputed_without_mu_gdp",
    "test_a_peer_repeats_noise_of_at_most_one_round_more_than_grace_and_each_in_three_uploads",
    "test_a_search_comes_nearer_to_what_is_claimed_than_truth_and_rotation",
    *(
        f"test_no_story_that_a_search_finds_costs_more_than_was_reserved[1-{seed}]"
        for seed in (5, 7, 9, 10, 11, 17, 23)  # many clients and rounds
    ),
    # planning, accounting, protocol
    "test_sums_and_ledgers_of_a_run_on_a_random_graph_are_exact[None]",
    "test_sums_and_ledgers_of_a_run_on_a_random_graph_are_exact[unseen]",
    "test_sums_and_ledgers_of_a_run_on_a_random_graph_are_exact_with_grace",
    "test_a_dear_round_that_the_plan_rules_out_ends_what_looking_ahead_had_promised",
    "test_a_repair_plan_lasts_its_rounds_when_every_round_is_at_its_worst",
    "test_a_request_with_many_stragglers_on_a_sparse_graph_is_planned_in_bounded_time",
    "test_epsilon_of_mixed_rounds_agrees_with_the_accountant_of_dp_accounting",
    "test_noise_multiplier_keeps_the_target_and_is_tight",
    "test_sampled_rounds_are_amplified_and_late_ones_still_counted",
    "test_sampled_rounds_stop_at_one_budget_for_all_rosters",
    "test_rounds_that_are_resumed_are_those_that_were_saved",
    "test_after_a_fork_the_parent_alone_answers",
    "runTest",  # random schedules of the whole protocol
    "test_a_client_that_asks_first_never_exceeds_its_budget",
    "test_a_repair_plan_lasts_its_rounds_when_stragglers_are_as_expected",
    "test_a_training_with_sampled_batches_is_admitted_by_few_compositions",
    "test_coarser_steps_are_pessimistic_and_hardly_so",
    "test_enrolment_round_trips",
    "test_epsilon_agrees_with_dp_accounting_and_is_never_above_its_pessimistic_estimate",
    "test_individual_noise_is_gaussian_with_the_right_scale_and_no_other",
    "test_looking_ahead_decides_each_sampled_round_as_a_look_at_that_round_alone",
    "test_noise_in_the_mean_is_what_a_simulated_round_leaves",
    "test_odometer_bounds_the_exact_loss_of_every_training",
    "test_every_charge_at_every_moment_bounds_the_exact_loss",
    "test_peers_have_repaired_for_sure_only_once_they_were_used_in_two_rounds_in_a_row",
    "test_sampled_plans_keep_the_budget",
    "test_samples_are_gaussian_and_a_two_percent_wrong_scale_is_not",
    # federation
    "test_a_liar_in_several_rosters_gets_no_more_than_one_budget",
    "test_hundreds_of_rosters_leave_a_small_state_and_the_whole_ledger",
    "test_the_same_holds_for_sampled_batches",
    "test_the_same_holds_for_a_dozen_schedules_more",
    # report
    "test_a_file_is_written_whole[svg]",
    "test_a_given_law_holds_where_stragglers_are_not_swept",
    "test_a_plan_with_more_stragglers_than_secure_aggregation_bears_lies_inside_its_panel",
    "test_a_saved_file_has_the_mode_of_any_new_file",
    "test_accuracy_is_drawn_against_modelled_time_where_it_was_recorded",
    "test_save_refuses_what_it_cannot_write",
    "test_save_replaces_a_file_and_leaves_nothing_else",
    "test_settings_of_the_plan_are_kept_in_every_panel",
    "test_sparse_graphs_are_drawn_without_the_paper",
    "test_the_sheet_has_every_panel",
    "test_title_and_subtitle_say_what_is_drawn",
    "test_what_a_record_says_stays_text",
    "test_a_report_is_written_as_its_name_says",
    "test_the_smallest_plans_are_drawn_with_visible_points",
    # training
    "test_an_interrupted_run_goes_on_to_the_same_weights",
    "test_rounds_of_the_last_layer_leave_the_others_as_they_start_and_cost_what_any_round_costs",
    "test_a_run_of_natural_clients_resumes_to_the_same_log",
    "test_a_run_of_persons_says_so_everywhere_and_stands_an_audit",
    "test_real_members_and_the_simulator_have_the_same_sets_and_ledgers",
    "test_who_has_no_budget_left_is_out_and_the_run_ends_when_too_few_are_left",
    "test_cohorts_are_of_every_member_and_take_turns",
    "test_a_run_with_members_that_come_and_go_resumes_to_the_same_log",
    "test_float32_is_as_exact_as_elsewhere",
    "test_lanes_give_the_updates_of_a_plain_loop",
    "test_layers_that_mix_records_or_draw_are_refused_in_training_mode_only",
    "test_views_of_records_train_a_model",
    "test_training_stops_hard_at_the_budget_and_takes_late_uploads_in",
    "test_under_grace_both_fidelities_leave_the_noise_of_the_theory_closing_rounds_included",
    "test_what_sampled_batches_cost_is_looked_at_with_the_accuracy",
    "test_an_interrupted_run_goes_on_to_the_same_log_bit_by_bit",
    "test_clients_with_their_own_parameters_train_under_vmap",
    "test_every_record_has_the_gradient_of_its_views_alone",
    "test_gradient_of_a_record_under_vmap_is_its_gradient_alone",
}


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if {item.name, item.name.partition("[")[0]} & TESTS or item.path.name in FILES:
            item.add_marker(pytest.mark.slow)
