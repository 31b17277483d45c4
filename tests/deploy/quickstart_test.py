# SPDX-License-Identifier: Apache-2.0
"""docs/quickstart.md, followed literally: a clean clone of what is committed, and every block of the page in one shell that
ends at the first command that fails. Prints how long each part took. Minutes, most of them the build."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def parts(text):
    """Headings and the commands below them."""
    for chapter in text.split("\n## ")[1:]:
        commands = "".join(re.findall(r"^```bash\n(.*?)^```$", chapter, re.M | re.S))
        if commands:
            yield chapter.split("\n", 1)[0], commands


def main():
    if shutil.which("git") is None or subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"],
                                                     capture_output=True).returncode != 0:
        print("SKIPPED: no git repository to clone")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ballast-quickstart-") as folder:
        clone = os.path.join(folder, "ballast")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        with open(os.path.join(clone, "docs", "quickstart.md")) as file:
            chapters = list(parts(file.read()))
        assert [title for title, _ in chapters][0] == "Build" and len(chapters) >= 5, chapters
        script = "set -euo pipefail\n" + "".join(
            f"echo '== {title}'\n{commands}\n" for title, commands in chapters) + "echo '== end'\n"
        os.mkdir(os.path.join(folder, "run"), 0o700)
        begin = time.monotonic()
        shell = subprocess.Popen(["bash", "-c", script], cwd=clone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                 env=dict(os.environ, XDG_RUNTIME_DIR=os.path.join(folder, "run")))
        said = []
        try:
            for line in shell.stdout:
                said.append(line)
                if line.startswith("== "):
                    print(f"{time.monotonic() - begin:6.1f} s {line[3:].strip()}", flush=True)
            code = shell.wait(60)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        assert code == 0 and said[-1] == "== end\n", f"exit code {code}\n{''.join(said[-60:])}"
        if shutil.which("kubectl") is not None:
            done = subprocess.run(["kubectl", "kustomize", os.path.join(folder, "quick", "overlay")], capture_output=True,
                                  text=True)
            assert done.returncode == 0 and "kind: StatefulSet" in done.stdout, done.stderr
            print("ok kubectl takes the overlay of the page")
        print(f"ok docs/quickstart.md, literally, in {time.monotonic() - begin:.0f} s")


main()
