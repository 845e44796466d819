from itertools import chain

from bertrio.schedules import Joint


def test_every_joint_step_has_every_task_and_the_epoch_is_counted_by_one():
    schedule = Joint({"sst": 4, "qqp": 9, "sts": 2}, until="sst")
    steps = list(schedule.epoch())
    assert len(steps) == schedule.steps_per_epoch == 4
    assert all(step == ("sst", "qqp", "sts") for step in steps)
    assert len(list(chain(schedule.epoch(), schedule.epoch()))) == 8
