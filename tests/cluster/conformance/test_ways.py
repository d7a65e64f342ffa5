"""A handful of the checks in every other way that links and the daemon can come."""

import pytest

from sandlot.testing.conformance.ending import test_time_limit_returns_soon_and_kills_the_whole_tree
from sandlot.testing.conformance.files import test_a_tree_goes_up_and_comes_down_unchanged, test_large_file_up_and_down
from sandlot.testing.conformance.images import (
    test_entrypoint_is_replaced_and_workdir_made,
    test_image_user_without_an_entry_can_work,
    test_image_without_any_shell_runs_argument_vectors,
    test_read_only_root_leaves_the_scratch_places,
)
from sandlot.testing.conformance.jobs import test_a_link_cut_again_and_again_runs_nothing_twice
from sandlot.testing.conformance.output import (
    test_five_million_bytes_arrive_whole_on_either_stream,
    test_many_commands_at_once_keep_their_outputs_apart,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

__all__ = [
    "test_a_link_cut_again_and_again_runs_nothing_twice",
    "test_a_tree_goes_up_and_comes_down_unchanged",
    "test_entrypoint_is_replaced_and_workdir_made",
    "test_five_million_bytes_arrive_whole_on_either_stream",
    "test_image_user_without_an_entry_can_work",
    "test_image_without_any_shell_runs_argument_vectors",
    "test_large_file_up_and_down",
    "test_many_commands_at_once_keep_their_outputs_apart",
    "test_read_only_root_leaves_the_scratch_places",
    "test_time_limit_returns_soon_and_kills_the_whole_tree",
]
