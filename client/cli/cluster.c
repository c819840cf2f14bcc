/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cluster.h"

#include "base/address.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGS_MAX = 160, READY_BYTES = 1024, LAST_WORDS_BYTES = 400 };

struct child {
    char name[24]; /* "server", "worker-1" */
    char log[PATH_MAX];
    pid_t pid; /* 0: not running */
    int out;   /* its stdout; -1: closed */
    int status;
    char ready[READY_BYTES]; /* its first line */
    size_t ready_bytes;
};

struct cli_cluster {
    struct child server, workers[CLI_CLUSTER_WORKERS_MAX];
    int worker_count, threads, signal_fd, lock_fd;
    char folder[PATH_MAX]; /* of the programs */
    char address[BASE_ADDRESS_CHARS], http[BASE_ADDRESS_CHARS];
};

struct args {
    const char *values[ARGS_MAX];
    int count;
};

static void arg(struct args *args, const char *flag, const char *value)
{
    if (!value || args->count + 3 > ARGS_MAX)
        return;
    args->values[args->count++] = flag;
    args->values[args->count++] = value;
}

/* ---- children ---- */

static void become(const char *program, const struct args *args, int out, int log, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C is for the parent, which ends us in order */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127);
    int in = open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0)
        _exit(127);
    execv(program, (char *const *)(uintptr_t)args->values);
    dprintf(2, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

static enum base_code spawn(const struct cli_cluster *cluster, struct child *child, struct args *args,
                            struct base_error *error)
{
    char program[PATH_MAX + 64];
    int pipe_fds[2];
    snprintf(program, sizeof program, "%s/%s", cluster->folder, args->values[0]);
    args->values[args->count] = NULL;
    int log = open(child->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0)
        return base_error_errno(error, errno, "%s", child->log);
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        close(log);
        return base_error_errno(error, errno, "%s: no pipe", child->name);
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(program, args, pipe_fds[1], log, parent);
    close(pipe_fds[1]);
    close(log);
    if (pid < 0) {
        close(pipe_fds[0]);
        return base_error_errno(error, errno, "%s cannot be started", child->name);
    }
    child->pid = pid;
    child->out = pipe_fds[0];
    return BASE_OK;
}

/* The end of its log: what it said before it died. */
static void last_words(const struct child *child, char text[LAST_WORDS_BYTES])
{
    text[0] = 0;
    FILE *log = fopen(child->log, "r");
    if (!log)
        return;
    if (fseek(log, -(LAST_WORDS_BYTES - 1), SEEK_END) != 0)
        rewind(log);
    size_t size = fread(text, 1, LAST_WORDS_BYTES - 1, log);
    fclose(log);
    while (size > 0 && text[size - 1] == '\n')
        size--;
    text[size] = 0;
    char *line = strrchr(text, '\n');
    if (line)
        memmove(text, line + 1, strlen(line));
}

static const char *describe_end(const struct child *child, char text[64])
{
    if (WIFSIGNALED(child->status))
        snprintf(text, 64, "was ended by signal %d", WTERMSIG(child->status));
    else
        snprintf(text, 64, "ended with status %d", WEXITSTATUS(child->status));
    return text;
}

/* True when it has just been found dead. */
static bool reap(struct child *child)
{
    if (child->pid == 0 || waitpid(child->pid, &child->status, WNOHANG) != child->pid)
        return false;
    child->pid = 0;
    return true;
}

/* Takes what it wrote; what follows its first line is of no interest. False at its end. */
static bool read_out(struct child *child)
{
    char more[READY_BYTES];
    ssize_t size = read(child->out, more, sizeof more);
    if (size <= 0)
        return size < 0 && (errno == EINTR || errno == EAGAIN);
    size_t room = sizeof child->ready - 1 - child->ready_bytes;
    size_t taken = (size_t)size < room ? (size_t)size : room;
    memcpy(child->ready + child->ready_bytes, more, taken);
    child->ready_bytes += taken;
    return true;
}

/* ---- start ---- */

static enum base_code await_ready(struct cli_cluster *cluster, struct child *child, int64_t deadline_ns,
                                  struct base_error *error)
{
    char words[LAST_WORDS_BYTES], end[64];
    while (!strchr(child->ready, '\n')) {
        int64_t left_ms = (deadline_ns - base_clock_now_ns()) / BASE_NS_PER_MS;
        struct pollfd fds[] = {{child->out, POLLIN, 0}, {cluster->signal_fd, POLLIN, 0}};
        if (left_ms <= 0)
            return base_error_set(error, BASE_TIMEOUT, "%s was not ready in time; see %s", child->name,
                                  child->log);
        if (poll(fds, 2, (int)left_ms) <= 0)
            continue;
        if (fds[1].revents)
            return base_error_set(error, BASE_CANCELLED, "interrupted");
        if (read_out(child))
            continue;
        close(child->out);
        child->out = -1;
        waitpid(child->pid, &child->status, 0);
        child->pid = 0;
        last_words(child, words);
        bool usage = WIFEXITED(child->status) && WEXITSTATUS(child->status) == 2;
        return base_error_set(error, usage ? BASE_INVALID : BASE_UNAVAILABLE, "%s %s: %s", child->name,
                              describe_end(child, end), words);
    }
    if (strncmp(child->ready, "ready ", 6) != 0)
        return base_error_set(error, BASE_INTERNAL, "%s did not say ready; see %s", child->name, child->log);
    return BASE_OK;
}

/* Where a process on this machine reaches what listens on every address. */
static void reachable(const char *address, char out[BASE_ADDRESS_CHARS])
{
    if (strncmp(address, "0.0.0.0:", 8) == 0)
        snprintf(out, BASE_ADDRESS_CHARS, "127.0.0.1:%.10s", address + 8);
    else if (strncmp(address, "[::]:", 5) == 0)
        snprintf(out, BASE_ADDRESS_CHARS, "[::1]:%.10s", address + 5);
    else
        snprintf(out, BASE_ADDRESS_CHARS, "%s", address);
}

static enum base_code make_folder(const char *path, struct base_error *error)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s/", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return base_error_errno(error, errno, "%s", part);
        *slash = '/';
    }
    return BASE_OK;
}

static enum base_code name_child(struct child *child, const char *state, char folder[PATH_MAX],
                                 struct base_error *error)
{
    if (snprintf(child->log, sizeof child->log, "%s/log/%s.log", state, child->name) >=
        (int)sizeof child->log)
        return base_error_set(error, BASE_TOO_LARGE, "%s: too long a path", state);
    snprintf(folder, PATH_MAX, "%.*s/%s", PATH_MAX - 32, state, child->name);
    return make_folder(folder, error);
}

static enum base_code start_server(struct cli_cluster *cluster, const struct cli_cluster_options *o,
                                   int64_t deadline_ns, struct base_error *error)
{
    char folder[PATH_MAX];
    struct child *child = &cluster->server;
    snprintf(child->name, sizeof child->name, "server");
    enum base_code code = name_child(child, o->state, folder, error);
    if (code != BASE_OK)
        return code;
    struct args args = {{"millrace-server"}, 1};
    arg(&args, "--listen", o->listen);
    arg(&args, "--http", o->http);
    arg(&args, "--state", folder);
    arg(&args, "--secret-file", o->secret_file);
    arg(&args, "--log-level", o->log_level);
    if (o->insecure)
        args.values[args.count++] = "--insecure";
    code = spawn(cluster, child, &args, error);
    if (code == BASE_OK)
        code = await_ready(cluster, child, deadline_ns, error);
    if (code != BASE_OK)
        return code;
    char address[BASE_ADDRESS_CHARS] = "", http[BASE_ADDRESS_CHARS] = "";
    if (sscanf(child->ready, "ready %255s http %255s", address, http) < 1)
        return base_error_set(error, BASE_INTERNAL, "the server did not say its address");
    reachable(address, cluster->address);
    reachable(http, cluster->http);
    return BASE_OK;
}

static enum base_code start_worker(struct cli_cluster *cluster, const struct cli_cluster_options *o,
                                   int index, struct base_error *error)
{
    char folder[PATH_MAX], threads[16], host[256], listen[300], staging[24], raw[24];
    uint64_t memory =
        base_limits_memory_bytes() / (uint64_t)o->workers; /* what one worker would take is shared */
    uint16_t port;
    struct child *child = &cluster->workers[index];
    snprintf(child->name, sizeof child->name, "worker-%d", index + 1);
    enum base_code code = name_child(child, o->state, folder, error);
    if (code == BASE_OK)
        code = base_address_parse(o->listen, host, &port, error);
    if (code != BASE_OK)
        return code;
    snprintf(staging, sizeof staging, "%llu", (unsigned long long)memory / 4);
    snprintf(raw, sizeof raw, "%llu", (unsigned long long)memory / 16);
    snprintf(threads, sizeof threads, "%d", cluster->threads);
    snprintf(listen, sizeof listen, strchr(host, ':') ? "[%s]:0" : "%s:0", host);
    struct args args = {{"millrace-worker"}, 1};
    arg(&args, "--server", cluster->address);
    arg(&args, "--listen", listen);
    arg(&args, "--state", folder);
    arg(&args, "--threads", threads);
    arg(&args, "--cpu-class", "normal");
    arg(&args, "--staging", o->staging ? o->staging : staging);
    arg(&args, "--raw", raw);
    arg(&args, "--secret-file", o->secret_file);
    arg(&args, "--log-level", o->log_level);
    for (int i = 0; i < o->data_root_count; i++)
        arg(&args, "--data-root", o->data_roots[i]);
    if (o->insecure)
        args.values[args.count++] = "--insecure";
    for (int i = 0; i < o->worker_flag_count && args.count + 1 < ARGS_MAX; i++)
        args.values[args.count++] = o->worker_flags[i];
    code = spawn(cluster, child, &args, error);
    if (code == BASE_OK)
        cluster->worker_count = index + 1;
    return code;
}

/* Beside this program. */
static enum base_code find_programs(struct cli_cluster *cluster, struct base_error *error)
{
    char self[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size < 0)
        return base_error_errno(error, errno, "/proc/self/exe");
    self[size] = 0;
    snprintf(cluster->folder, sizeof cluster->folder, "%s", dirname(self));
    return BASE_OK;
}

static enum base_code lock_state(struct cli_cluster *cluster, const char *state, struct base_error *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/log", PATH_MAX - 8, state);
    enum base_code code = make_folder(path, error);
    if (code != BASE_OK)
        return code;
    snprintf(path, sizeof path, "%.*s/lock", PATH_MAX - 8, state);
    cluster->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (cluster->lock_fd < 0)
        return base_error_errno(error, errno, "%s", path);
    if (flock(cluster->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return base_error_set(error, BASE_EXISTS, "%s: another `millrace up` uses this state folder", state);
    return BASE_OK;
}

static enum base_code take_signals(struct cli_cluster *cluster, struct base_error *error)
{
    sigset_t set;
    struct sigaction before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    if (sigaction(SIGINT, NULL, &before) != 0 || before.sa_handler != SIG_IGN) /* a script's background job */
        sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    cluster->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return cluster->signal_fd >= 0 ? BASE_OK : base_error_errno(error, errno, "signals");
}

enum base_code cli_cluster_start(struct cli_cluster **cluster, const struct cli_cluster_options *options,
                                 int64_t timeout_ms, struct base_error *error)
{
    int64_t deadline_ns = base_clock_deadline_ns(timeout_ms);
    struct cli_cluster *c = calloc(1, sizeof *c);
    if (!c)
        return base_error_set(error, BASE_NO_MEMORY, "no memory");
    c->signal_fd = c->lock_fd = c->server.out = -1;
    for (int i = 0; i < CLI_CLUSTER_WORKERS_MAX; i++)
        c->workers[i].out = -1;
    int shared = base_limits_cores() / (options->workers > 0 ? options->workers : 1);
    c->threads = options->threads ? options->threads : shared > 0 ? shared : 1;
    enum base_code code = find_programs(c, error);
    if (code == BASE_OK)
        code = lock_state(c, options->state, error);
    if (code == BASE_OK)
        code = take_signals(c, error);
    if (code == BASE_OK)
        code = start_server(c, options, deadline_ns, error);
    for (int i = 0; code == BASE_OK && i < options->workers; i++)
        code = start_worker(c, options, i, error);
    for (int i = 0; code == BASE_OK && i < options->workers; i++)
        code = await_ready(c, &c->workers[i], deadline_ns, error);
    if (code == BASE_OK)
        *cluster = c;
    else
        cli_cluster_stop(&c, 1000);
    return code;
}

/* ---- stop ---- */

static void signal_child(struct child *child, int number)
{
    if (child->pid > 0)
        kill(child->pid, number);
}

/* Waits for those from `first` on; true when all have ended. Ctrl-C (again) cuts it short. */
static bool await_end(struct cli_cluster *cluster, struct child *first, int count, int64_t deadline_ns)
{
    for (;;) {
        int left = 0;
        for (int i = 0; i < count; i++) {
            reap(&first[i]);
            left += first[i].pid > 0;
        }
        struct signalfd_siginfo info;
        if (left == 0)
            return true;
        bool hurry = read(cluster->signal_fd, &info, sizeof info) > 0 && info.ssi_signo == SIGINT;
        if (hurry || base_clock_now_ns() > deadline_ns)
            return false;
        usleep(5000); /* a poll of waitpid, bounded by the deadline */
    }
}

static void end_children(struct cli_cluster *cluster, struct child *first, int count, int64_t grace_ms)
{
    for (int i = 0; i < count; i++)
        signal_child(&first[i], SIGTERM);
    if (await_end(cluster, first, count, base_clock_deadline_ns(grace_ms)))
        return;
    for (int i = 0; i < count; i++) {
        if (first[i].pid > 0)
            fprintf(stderr, "millrace: %s did not end in time: killed\n", first[i].name);
        signal_child(&first[i], SIGKILL);
    }
    for (int i = 0; i < count; i++)
        if (first[i].pid > 0)
            waitpid(first[i].pid, &first[i].status, 0);
}

void cli_cluster_stop(struct cli_cluster **cluster, int64_t grace_ms)
{
    struct cli_cluster *c = *cluster;
    *cluster = NULL;
    if (!c)
        return;
    end_children(c, c->workers, c->worker_count, grace_ms);
    end_children(c, &c->server, 1, grace_ms);
    for (int i = 0; i < c->worker_count; i++)
        if (c->workers[i].out >= 0)
            close(c->workers[i].out);
    int fds[] = {c->server.out, c->signal_fd, c->lock_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(c);
}

/* ---- about it ---- */

const char *cli_cluster_address(const struct cli_cluster *cluster)
{
    return cluster->address;
}

const char *cli_cluster_http(const struct cli_cluster *cluster)
{
    return cluster->http;
}

int cli_cluster_threads(const struct cli_cluster *cluster)
{
    return cluster->threads * cluster->worker_count;
}

/* User and system time of a living process, in clock ticks of a hundredth of a second: for spans of seconds. */
static double cpu_s(pid_t pid)
{
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0)
        return 0;
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

double cli_cluster_worker_cpu_s(const struct cli_cluster *cluster)
{
    double total = 0;
    for (int i = 0; i < cluster->worker_count; i++)
        total += cpu_s(cluster->workers[i].pid);
    return total;
}

static void tell_death(const struct child *child)
{
    char words[LAST_WORDS_BYTES], end[64];
    last_words(child, words);
    fprintf(stderr, "millrace: %s %s; last line of %s: %s\n", child->name, describe_end(child, end),
            child->log, words);
}

int cli_cluster_watch(struct cli_cluster *cluster, int wait_ms, bool *any_left)
{
    struct pollfd fds[CLI_CLUSTER_WORKERS_MAX + 2] = {{cluster->signal_fd, POLLIN, 0}};
    struct child *children[CLI_CLUSTER_WORKERS_MAX + 2] = {NULL, &cluster->server};
    nfds_t count = 2;
    for (int i = 0; i < cluster->worker_count; i++)
        children[count++] = &cluster->workers[i];
    for (nfds_t i = 1; i < count; i++)
        fds[i] = (struct pollfd){children[i]->out, POLLIN, 0};
    struct signalfd_siginfo info;
    if (poll(fds, count, wait_ms) > 0 && fds[0].revents && read(cluster->signal_fd, &info, sizeof info) > 0)
        return (int)info.ssi_signo;
    *any_left = false;
    for (nfds_t i = 1; i < count; i++) {
        if (fds[i].revents && !read_out(children[i])) { /* its stdout closes when it dies */
            close(children[i]->out);
            children[i]->out = -1;
            waitpid(children[i]->pid, &children[i]->status, 0);
            children[i]->pid = 0;
            tell_death(children[i]);
        }
        *any_left |= children[i]->pid > 0;
    }
    return 0;
}
