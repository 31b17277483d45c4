# SPDX-License-Identifier: Apache-2.0
"""A client made from proto/ alone calls every method of every service, with an empty message and with garbage: each one is
served, answers with a status that says something, and leaves its service alive. What ends a process comes last. Needs
grpcio and protobuf for Python, and protoc."""
import shutil

import ballast
from reflection_test import Pool, compiled, grpc

TIMEOUT = 60
# Empty requests may be answered, refused as bad or out of turn, or be cut short by us; never anything else.
EXPECTED = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED, grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS,
            grpc.StatusCode.OUT_OF_RANGE}
LAST = ("Stop",)


def call(channel, service, method, request):
    """The status of one call; of a stream, once its first message or its end is there."""
    path = f"/{service}/{method.name}"
    if method.client_streaming:
        stub = channel.stream_stream(path)(iter([request]), timeout=TIMEOUT)
    elif method.server_streaming:
        stub = channel.unary_stream(path)(request, timeout=TIMEOUT)
    else:
        try:
            channel.unary_unary(path)(request, timeout=TIMEOUT)
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return error.code(), error.details()
    try:
        for _ in stub:
            break
        stub.cancel()
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), error.details()


def quiet_stream(service, method):
    """Watches that say nothing until something happens."""
    return method.server_streaming and method.name.startswith("Watch") and service != "grpc.health.v1.Health"


def call_all(channel, service, methods):
    for last in (False, True):
        for method in methods:
            if (method.name in LAST) != last:
                continue
            code, text = call(channel, service, method, b"\xff\xff\xff")
            assert code == grpc.StatusCode.INVALID_ARGUMENT, f"{service}.{method.name} of garbage: {code} {text}"
            if quiet_stream(service, method):
                print(f"{service}.{method.name}: garbage refused; followed by other tests")
                continue
            code, text = call(channel, service, method, b"")
            assert code in EXPECTED, f"{service}.{method.name}: {code} {text}"
            assert code == grpc.StatusCode.OK or text, f"{service}.{method.name}: {code} without words"
            print(f"{service}.{method.name}: {code.name} {text[:70]}")


def other_versions(known, address):
    """A stage takes no job from a driver of another version, nor from one that names none."""
    request = known.message("ballast.v1.ConfigureRequest")
    with grpc.insecure_channel(address) as channel:
        for version, named in (("0.1.0 (another)", "the driver is 0.1.0 (another)"), ("", "of an earlier version")):
            try:
                known.call(channel, "ballast.v1.Stage", "Configure", request(version=version))
                assert False, f"version '{version}' was accepted"
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and named in error.details(), error
    print("other versions are refused")


def main():
    if shutil.which("protoc") is None:
        ballast.skip("no protoc")
    with ballast.scratch() as folder:
        files = compiled(folder)
        known = Pool(files.values())
        services = {f"{file.package}.{service.name}": list(service.method)
                    for file in files.values() for service in file.service}
        running = []
        try:
            stage = ballast.Service(folder, "stage-service", "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0")
            running.append(stage)
            store = ballast.Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "16 MiB")
            running.append(store)
            idle = ballast.Service(folder, "stage-service", "--listen", "127.0.0.1:0")
            running.append(idle)
            job = ballast.write_job(folder, pipeline={"stages": 1}, train={"steps": 1},
                                    services={"stages": [idle.address]})
            driver = ballast.Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", "--linger")
            running.append(driver)
            with grpc.insecure_channel(driver.address) as channel:  # else answers depend on how far it is
                ballast.wait_until(lambda: known.call(channel, "ballast.v1.Driver", "Status").phase == "finished", 100,
                                   "the run has not finished")
            other_versions(known, stage.address)
            called = set()
            for service, address in (("ballast.v1.Store", store.address), ("ballast.v1.Driver", driver.address),
                                     ("ballast.v1.Stage", stage.address),
                                     ("grpc.health.v1.Health", stage.health_address),
                                     ("grpc.reflection.v1.ServerReflection", store.address),
                                     ("grpc.reflection.v1alpha.ServerReflection", store.address)):
                if service == "grpc.health.v1.Health":  # the stage above has ended
                    stage = ballast.Service(folder, "stage-service", "--listen", "127.0.0.1:0", "--health-listen",
                                            "127.0.0.1:0")
                    running.append(stage)
                    address = stage.health_address
                with grpc.insecure_channel(address) as channel:
                    call_all(channel, service, services[service])
                called.add(service)
            missing = set(services) - called
            assert not missing, f"services that nobody called: {missing}"
            for service in (store, stage):
                assert service.process.poll() is None, f"{service.address} did not live through it:\n{service.log()}"
        finally:
            for service in running:
                service.end()


if __name__ == "__main__":
    main()
