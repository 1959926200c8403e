# gpu-rag in a container: a server over the index in the volume /data, by a user without rights, with the packaged
# weights. For a GPU: --build-arg EXTRAS=gpu,documents,serve. compose.yaml has both, and how to make an index.
# A test compares this file with the repository and the command line. No image has been built from it yet, so sizes and
# times are not known, and nothing of it has run on a GPU.
FROM python:3.12-slim-bookworm
ARG EXTRAS=cpu,documents,serve
# Triton compiles its launchers with a C compiler.
RUN case ",$EXTRAS," in *,gpu,*) apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* ;; esac
WORKDIR /app
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY configs configs
COPY gpu_rag gpu_rag
COPY kernels kernels
COPY scripts/install.sh scripts/install.sh
RUN PYTHON=python3.12 bash scripts/install.sh /opt/gpu-rag "$EXTRAS" && rm -rf /root/.cache
ENV PATH=/opt/gpu-rag/bin:$PATH PYTHONUNBUFFERED=1 GPU_RAG_CACHE=/data/cache
RUN useradd --uid 10001 --create-home rag && mkdir /data && chown rag /data
USER 10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/ready', timeout=4)"]
ENTRYPOINT ["gpu-rag"]
CMD ["serve", "/data/index", "--host", "0.0.0.0", "--port", "8080"]
