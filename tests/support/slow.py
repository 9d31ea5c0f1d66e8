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
    "test_flower_examples.py",  # whole Flower deployments
    "test_reproduce.py",
    "test_results.py",
}
TESTS = {
    # cli
    "test_being_asked_to_terminate_is_ctrl_c",
    "test_plot_writes_one_whole_file",
    "test_the_command_writes_the_page_and_prints_the_figures",
    "test_python_m_works_without_docstrings_too",
    "test_the_list_of_commands_imports_none_and_a_command_imports_what_it_needs",
    # flower
    "test_a_client_that_is_late_in_every_round_does_not_end_the_training_of_the_others",
    "test_another_process_waits_for_the_lock",
    "test_flowers_own_simulation_engine_runs_it",
    # lab
    "test_any_compared_scheme_trains_and_its_rounds_take_time[paillier]",
    "test_any_scheme_has_a_row_with_its_figures_and_named_noise[paillier]",
    "test_a_round_with_a_modulus_of_2048_bits_gives_the_exact_sum",
    "test_json_is_a_record_that_can_be_shown_and_drawn_again",
    "test_the_sheet_draws_every_row_and_dashes_what_was_not_measured",
    "test_updates_are_the_same_for_every_scheme_and_inside_the_clip",
    "test_what_cannot_be_had_says_why_and_has_no_figures[paillier]",
    # planning, accounting, protocol
    "runTest",  # random schedules of the whole protocol
    "test_a_client_that_asks_first_never_exceeds_its_budget",
    "test_a_repair_plan_lasts_its_rounds_when_stragglers_are_as_expected",
    "test_a_training_with_sampled_batches_is_admitted_by_few_compositions",
    "test_coarser_steps_are_pessimistic_and_hardly_so",
    "test_commands_in_the_docs_print_what_the_docs_show",
    "test_enrolment_round_trips",
    "test_epsilon_agrees_with_dp_accounting_and_is_never_above_its_pessimistic_estimate",
    "test_individual_noise_is_gaussian_with_the_right_scale_and_no_other",
    "test_looking_ahead_decides_each_sampled_round_as_a_look_at_that_round_alone",
    "test_noise_in_the_mean_is_what_a_simulated_round_leaves",
    "test_odometer_bounds_the_exact_loss_of_every_training",
    "test_sampled_plans_keep_the_budget",
    "test_samples_are_gaussian_and_a_two_percent_wrong_scale_is_not",
    # report
    "test_a_report_is_written_as_its_name_says",
    "test_the_html_page_holds_the_data_and_every_script",
    "test_the_smallest_plans_are_drawn_with_visible_points",
    # training
    "test_an_interrupted_run_goes_on_to_the_same_record_bit_by_bit",
    "test_clients_with_their_own_parameters_train_under_vmap",
    "test_every_record_has_the_gradient_of_its_views_alone",
    "test_gradient_of_a_record_under_vmap_is_its_gradient_alone",
}


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if {item.name, item.name.partition("[")[0]} & TESTS or item.path.name in FILES:
            item.add_marker(pytest.mark.slow)
