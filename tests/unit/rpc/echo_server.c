/* SPDX-License-Identifier: Apache-2.0 */
/* echo_server ADDRESS [TOKEN_KEY]: prints "ready ADDRESS", serves until SIGTERM; SIGUSR1 turns its health
 * over. */
#include "tests/unit/rpc/echo.h"

#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    struct echo *echo;
    struct base_error error;
    rpc_start();
    if (argc < 2 || echo_start(&echo, argv[1], argc > 2 ? argv[2] : NULL, true, &error)) {
        fprintf(stderr, "echo_server: %s\n", argc < 2 ? "which address?" : error.text);
        return 1;
    }
    printf("ready %s\n", echo_address(echo));
    fflush(stdout);
    bool serving = true;
    int signal = 0;
    while (!sigwait(&signals, &signal) && signal == SIGUSR1)
        rpc_server_set_serving(echo_server(echo), serving = !serving);
    printf("stopped in %lld ms\n", (long long)echo_stop(&echo, 500));
    rpc_stop();
    return 0;
}
