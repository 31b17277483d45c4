# SPDX-License-Identifier: Apache-2.0
"""A client that knows nothing but proto/: lists services and methods of stage and driver by server reflection (v1 and
v1alpha), finds the same descriptors there as protoc makes, calls Status with messages built from them alone, and
follows health to the end of a process. Needs grpcio and protobuf for Python, and protoc."""
import os
import queue
import shutil
import subprocess
import sys

import ballast

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    ballast.skip(f"no grpcio for {sys.executable}: {error}")

VERSIONS = ("v1", "v1alpha")
TIMEOUT = 20


class Pool:
    """Messages and methods of a set of file descriptors."""

    def __init__(self, files):
        self.pool = descriptor_pool.DescriptorPool()
        waiting = {file.name: file for file in files}

        def add(name):
            file = waiting.pop(name, None)
            if file is not None:
                for dependency in file.dependency:
                    add(dependency)
                self.pool.Add(file)

        for name in list(waiting):
            add(name)

    def message(self, name):
        found = self.pool.FindMessageTypeByName(name)
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(found)
        return message_factory.MessageFactory(self.pool).GetPrototype(found)  # protobuf before 4.22

    def call(self, channel, service, method, request=None, stream=False):
        """A unary call, or a stream of responses."""
        found = self.pool.FindServiceByName(service).FindMethodByName(method)
        output = self.message(found.output_type.full_name)
        make = channel.unary_stream if stream else channel.unary_unary
        stub = make(f"/{service}/{method}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=output.FromString)
        return stub(request or self.message(found.input_type.full_name)(), timeout=TIMEOUT)


def compiled(folder):
    """What protoc says of every file under proto/, without source positions, as the servers hold it."""
    proto = os.path.join(ballast.ROOT, "proto")
    names = sorted(os.path.relpath(os.path.join(base, name), proto)
                   for base, _, names in os.walk(proto) for name in names if name.endswith(".proto"))
    path = os.path.join(folder, "set.bin")
    subprocess.run(["protoc", f"-I{proto}", "--include_imports", f"--descriptor_set_out={path}", *names], check=True)
    with open(path, "rb") as file:
        return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(file.read()).file}


class Reflection:
    def __init__(self, channel, known, version):
        self.package = f"grpc.reflection.{version}"
        self.known, self.channel = known, channel
        self.Request = known.message(f"{self.package}.ServerReflectionRequest")
        self.Response = known.message(f"{self.package}.ServerReflectionResponse")

    def stream(self, requests):
        stub = self.channel.stream_stream(f"/{self.package}.ServerReflection/ServerReflectionInfo",
                                          request_serializer=lambda m: m.SerializeToString(),
                                          response_deserializer=self.Response.FromString)
        return stub(iter(requests), timeout=TIMEOUT)

    def ask(self, *questions):
        """Many questions on one stream; the answers in their order."""
        requests = [self.Request(**question) for question in questions]
        answers = list(self.stream(requests))
        assert len(answers) == len(requests), f"{len(answers)} answers to {len(requests)} questions"
        for request, answer in zip(requests, answers):
            assert answer.original_request == request, f"{answer.original_request} answers {request}"
        return answers

    def services(self):
        return sorted(service.name for service in self.ask({"list_services": ""})[0].list_services_response.service)

    def files(self, symbol):
        answer = self.ask({"file_containing_symbol": symbol})[0]
        assert answer.WhichOneof("message_response") == "file_descriptor_response", answer
        return [descriptor_pb2.FileDescriptorProto.FromString(data)
                for data in answer.file_descriptor_response.file_descriptor_proto]


def check_lookups(reflection, files, service):
    names = reflection.services()
    served = {service, "ballast.v1.Driver"}  # others pass questions about policies on to the driver
    assert names == sorted([*served, *(f"grpc.reflection.{v}.ServerReflection" for v in VERSIONS)]), names
    for name in names:
        for file in reflection.files(name):
            assert file == files[file.name], f"{file.name} differs from protoc's"
    methods = [m.name for file in reflection.files(service) for s in file.service
               if f"{file.package}.{s.name}" == service for m in s.method]
    assert "Status" in methods and "Stop" in methods, methods
    by_name, value, number, extension, missing, nothing = reflection.ask(
        {"file_by_filename": "ballast/v1/driver.proto"}, {"file_containing_symbol": "ballast.v1.RUN_TRAIN"},
        {"all_extension_numbers_of_type": "ballast.v1.Vote"},
        {"file_containing_extension": {"containing_type": "ballast.v1.Vote", "extension_number": 7}},
        {"file_containing_symbol": "ballast.v1.NoSuch"}, {"host": "h"})
    sent = {descriptor_pb2.FileDescriptorProto.FromString(data).name
            for data in by_name.file_descriptor_response.file_descriptor_proto}
    assert sent == {"ballast/v1/driver.proto", "ballast/v1/stage.proto"}, sent
    assert value.file_descriptor_response.file_descriptor_proto, value
    assert number.all_extension_numbers_response.base_type_name == "ballast.v1.Vote", number
    for answer in extension, missing:
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], answer
    assert nothing.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0], nothing
    return methods


def check_streams(reflection):
    """An abandoned stream, one that says nothing sensible, and a long one leave the server as it was."""
    questions = queue.Queue()
    call = reflection.stream(iter(questions.get, None))
    questions.put(reflection.Request(list_services=""))
    next(call)
    call.cancel()
    questions.put(None)
    raw = reflection.channel.stream_stream(f"/{reflection.package}.ServerReflection/ServerReflectionInfo")
    try:
        list(raw(iter([b"\xff\xff\xff"]), timeout=TIMEOUT))
        raise AssertionError("garbage was answered")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    good = reflection.Request(list_services="").SerializeToString()
    answers = []
    try:
        for answer in raw(iter([good, b"\xff\xff\xff"]), timeout=TIMEOUT):
            answers.append(answer)
        raise AssertionError("garbage was answered")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and len(answers) == 1, (error, answers)
    assert len(reflection.ask(*[{"list_services": ""}] * 200)) == 200


def main():
    if shutil.which("protoc") is None:
        ballast.skip("no protoc")
    with ballast.scratch() as folder:
        files = compiled(folder)
        known = Pool(files.values())
        stages, driver = [], None
        try:
            for _ in range(2):
                stages.append(ballast.Service(folder, "stage-service", "--listen", "127.0.0.1:0", "--health-listen",
                                              "127.0.0.1:0"))
            job = ballast.write_job(folder, services={"stages": [stage.address for stage in stages]})
            driver = ballast.Service(folder, "ballast-driver", "--job", job, "--listen", f"unix:{folder}/driver",
                                     "--linger")
            for address, service in ((stages[0].address, "ballast.v1.Stage"), (driver.address, "ballast.v1.Driver")):
                with grpc.insecure_channel(address) as channel:
                    for version in VERSIONS:
                        reflection = Reflection(channel, known, version)
                        methods = check_lookups(reflection, files, service)
                        check_streams(reflection)
                    reflected = Pool(reflection.files(service))
                    status = reflected.call(channel, service, "Status")
                    print(f"{service}: {', '.join(methods)}; Status: phase {status.phase}")
                    assert status.phase, status
                    try:
                        list(reflected.call(channel, service, "Trace", stream=True))
                    except grpc.RpcError as error:  # between steps it answers, while one runs it says so
                        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
            with grpc.insecure_channel(stages[0].health_address) as channel:
                health = known.message("grpc.health.v1.HealthCheckRequest")(service="ballast.v1.Stage")
                watch = known.call(channel, "grpc.health.v1.Health", "Watch", health, stream=True)
                assert next(watch).status == 1, "SERVING"
                driver.end()
                stages[0].end()
                seen = []
                try:
                    for answer in watch:
                        seen.append(answer.status)
                    raise AssertionError(f"the watch ended well: {seen}")
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                assert seen == [2], f"NOT_SERVING once, then the end: {seen}"
        finally:
            for service in ([driver] if driver else []) + stages:
                service.end()


if __name__ == "__main__":
    main()
