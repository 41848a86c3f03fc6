"""A check of a backup names every damaged object."""

from tests.backup.engine_world import BACKUP, LogDriver, back_up, fill, store_on
from topics.backup.checking import BackupCheck


def test_every_object_of_a_point_is_checked() -> None:
    driver = LogDriver()
    fill(driver)
    back_up(driver)
    driver.append("more")
    back_up(driver)
    objects = [path for path in sorted(driver.disk.files()) if path.startswith(f"{BACKUP}/")]
    check = BackupCheck(store_on(driver.fs))
    assert list(check.run()) == []
    assert check.totals.points == 2
    assert check.totals.files == sum("/files/" in path for path in objects)
    for path in objects:
        if path.endswith("/BACKUP"):
            continue
        content = driver.disk.read(path)
        middle = len(content) // 2
        flipped = content[:middle] + bytes((content[middle] ^ 1,)) + content[middle + 1 :]
        for broken in (content[:-1], flipped, None):
            if broken is None:
                driver.fs.unlink(path)
                # A point that is missing is a point that was never taken.
                expected = [] if "/points/" in path else [path]
            else:
                driver.disk.replace(path, broken)
                expected = [path]
            assert [damage.path for damage in BackupCheck(store_on(driver.fs)).run()] == expected
            if broken is None:
                driver.fs.open(path, "create").close()
            driver.disk.replace(path, content)
    assert list(BackupCheck(store_on(driver.fs)).run()) == []
