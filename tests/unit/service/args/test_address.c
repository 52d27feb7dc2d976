/* test_address.c - addresses of other hosts. */
#include "service/args/address.h"

#include "schemas/errors.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void addresses_are_numbers_and_a_port(void **state)
{
    static const char *const bad[] = {"",
                                      "10.0.0.1",
                                      "10.0.0.1:",
                                      ":7200",
                                      "host:7200",
                                      "10.0.0.1:0",
                                      "10.0.0.1:65536",
                                      "::1:7200",
                                      "[::1]7200",
                                      "[::1:7200",
                                      "[10.0.0.1]:1",
                                      "[]:1",
                                      "10.0.0:7200",
                                      "10.0.0.1:7200 ",
                                      "]:1",
                                      "[:1"};
    struct sockaddr_storage address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)&address;
    socklen_t bytes;
    (void)state;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(attnd_address_parse(bad[i], &address, &bytes), -ATTND_E_INVALID);
    assert_int_equal(attnd_address_parse("10.1.2.3:7200", &address, &bytes), 0);
    assert_int_equal(bytes, sizeof(*four));
    assert_int_equal(four->sin_family, AF_INET);
    assert_int_equal(ntohs(four->sin_port), 7200);
    assert_int_equal(ntohl(four->sin_addr.s_addr), 0x0a010203);
    assert_int_equal(attnd_address_parse("[fe80::1]:1", &address, &bytes), 0);
    assert_int_equal(bytes, sizeof(*six));
    assert_int_equal(six->sin6_family, AF_INET6);
    assert_int_equal(ntohs(six->sin6_port), 1);
    assert_int_equal(six->sin6_addr.s6_addr[15], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(addresses_are_numbers_and_a_port)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
