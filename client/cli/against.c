/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/against.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Measures loader() of the file argv[1] for argv[2] seconds. CPU time is that of its worker processes, too. */
static const char runner[] =
    "import importlib, os, signal, sys, time\n"
    "signal.pthread_sigmask(signal.SIG_SETMASK, [])\n" /* bench has blocked SIGINT */
    "path, seconds = sys.argv[1], float(sys.argv[2])\n"
    "sys.path.insert(0, os.path.dirname(os.path.abspath(path)))\n"
    "if not os.path.isfile(path):\n"
    "    sys.exit(f'{path}: no such file')\n"
    "try:\n"
    "    module = importlib.import_module(os.path.splitext(os.path.basename(path))[0])\n"
    "except ImportError as error:\n"
    "    sys.exit(f'{path}: {error}, of {sys.executable}: it is the python3 of your PATH that runs the "
    "file')\n"
    "if not hasattr(module, 'loader'):\n"
    "    sys.exit(f'{path}: defines no function loader()')\n"
    "made = module.loader()\n"
    "\n"
    "def cpu_s():\n"
    "    total, todo = 0, [os.getpid()]\n"
    "    while todo:\n"
    "        pid = todo.pop()\n"
    "        try:\n"
    "            with open(f'/proc/{pid}/stat') as f:\n"
    "                total += sum(map(int, f.read().rsplit(')', 1)[1].split()[11:15]))\n"
    "            for task in os.listdir(f'/proc/{pid}/task'):\n"
    "                with open(f'/proc/{pid}/task/{task}/children') as f:\n"
    "                    todo += map(int, f.read().split())\n"
    "        except OSError:\n"
    "            pass\n"
    "    return total / os.sysconf('SC_CLK_TCK')\n"
    "\n"
    "def take():\n"
    "    rows, began = 0, time.monotonic()\n"
    "    for batch in made:\n"
    "        try:\n"
    "            rows += len(next(iter(batch.values())) if hasattr(batch, 'values') else batch[0])\n"
    "        except (TypeError, LookupError, StopIteration):\n"
    "            sys.exit(f'{path}: a batch is {type(batch).__name__}, not a tuple, list or dictionary whose "
    "'\n"
    "                     'first part has a row for each sample')\n"
    "        if time.monotonic() - began >= seconds:\n"
    "            break\n"
    "    return rows\n"
    "\n"
    "if not take():\n"
    "    sys.exit(f'{path}: loader() gives no rows')\n"
    "rows, began, cpu = 0, time.monotonic(), cpu_s()\n"
    "while time.monotonic() - began < seconds:\n"
    "    more = take()\n"
    "    rows += more or sys.exit(f'{path}: loader() gives one epoch only: return what can be iterated "
    "again')\n"
    "wall, cpu = time.monotonic() - began, cpu_s() - cpu\n"
    "print(f'{path}: images/s {rows / wall:.1f} cpu_s/1000 {1000 * cpu / rows:.3f}', flush=True)\n";

static bool is_python(const char *what)
{
    size_t size = strlen(what);
    return size > 3 && strcmp(what + size - 3, ".py") == 0 && !strchr(what, ' ');
}

static FILE *start(const char *what, int64_t seconds)
{
    char command[128];
    if (!is_python(what))
        return popen(what, "r");
    snprintf(command, sizeof command, "exec python3 -c \"$MILLRACE_RUNNER\" \"$MILLRACE_FILE\" %" PRId64,
             seconds);
    bool told = !setenv("MILLRACE_RUNNER", runner, 1) && !setenv("MILLRACE_FILE", what, 1);
    return told ? popen(command, "r") : NULL;
}

enum base_code cli_against_run(const char *what, int64_t seconds, struct cli_against *result,
                               struct base_error *error)
{
    char line[4096];
    FILE *peer = start(what, seconds);
    *result = (struct cli_against){0};
    if (!peer)
        return base_error_errno(error, errno, "--against");
    while (fgets(line, sizeof line, peer)) {
        const char *images = strstr(line, "images/s "), *cpu = strstr(line, "cpu_s/1000 ");
        if (images)
            result->images_s = strtod(images + 9, NULL);
        if (cpu)
            result->cpu_s_1000 = strtod(cpu + 11, NULL);
        fputs(line, stderr);
    }
    int status = pclose(peer);
    if (status != 0 || !(result->images_s > 0))
        return base_error_set(error, BASE_INVALID, "--against %s: it failed or printed no images/s", what);
    return BASE_OK;
}
